package natsaccess_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func TestMain(m *testing.M) {
	natstest.Main()
	os.Exit(m.Run())
}

// TestABuildWorksBeforeAClusterAndCanDoNoMoreThere tells a hint and an end through a leaf node of a cluster, also an
// end that is looked for in the streams, and tries what a build may not.
func TestABuildWorksBeforeAClusterAndCanDoNoMoreThere(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, natstest.ClusterOptions{User: "engine", Password: "hush"})
	engine := streams.Shared(cluster.Connect(), 3)
	_, err := engine.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: wire.DoneStream, Subjects: []string{wire.DoneSubjects}, Duplicates: time.Hour,
	})
	if err = errors.Join(err, loop.EnsureStreams(t.Context(), engine),
		results.EnsureStream(t.Context(), engine)); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{"app", "other"} { // two proxies before one cluster
		server := natstest.StartBefore(t, cluster)
		build := server.Dial(server.Admit(of+"@1", app(of, of)))
		subject, data := fact(t, predictor.Scheduled{
			Run: of + "-1", Stage: predictor.StageID{App: of, Name: "s"}, Expected: 1,
		})
		if _, err := build.Publish(t.Context(), subject, data); err != nil {
			t.Fatalf("a hint of %s: %v", of, err)
		}
		recorder := loop.NewRecorder(build, &loop.RecorderOptions{Acknowledged: true})
		for i, at := range []time.Time{time.Now(), time.Now().Add(-time.Hour)} {
			run := of + "-" + string(rune('a'+i))
			if err := recorder.End(t.Context(), predictor.RunStarted{Run: run, Pipeline: of, App: of, At: at},
				predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at},
				wire.Done{Version: wire.Version, Run: run, Pipeline: of, State: predictor.RunSucceeded, Ended: at}); err != nil {
				t.Errorf("the end of %s: %v", run, err)
			}
		}
		if err := recorder.Close(t.Context()); err != nil {
			t.Error(err)
		}
		foreign, data := fact(t, ended("someone-1", 0))
		if _, err := build.Publish(t.Context(), foreign, data); refused(err) != 403 {
			t.Errorf("the end of another's run: got %v, want to be refused", err)
		}
		removal := "$JS.API.STREAM.DELETE." + wire.LoopStream
		if answer, err := build.Conn().Request(removal, nil, 100*time.Millisecond); err == nil {
			t.Errorf("a build may ask to delete a stream: %s", answer.Data)
		}
	}
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := stream.CachedInfo().State.Msgs, uint64(2*(1+2*2)); got != want {
		t.Errorf("the loop's stream has %d messages, want %d: a hint, and two starts and two ends of each", got, want)
	}
}
