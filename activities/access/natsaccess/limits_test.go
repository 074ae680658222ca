package natsaccess_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// useUpAsked asks so much that what the build asks next comes too fast, until some milliseconds have passed.
func useUpAsked(t *testing.T, build jetstream.JetStream) {
	t.Helper()
	const question = "$JS.API.STREAM.INFO." + wire.ResultStream
	for most := 2000; ; most-- {
		answer, err := build.Conn().Request(question, make([]byte, 250<<10), patience)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(answer.Data), `"code":429`) {
			break
		}
		if most == 0 {
			t.Fatal("all questions were taken")
		}
	}
	for range 2000 {
		if err := build.Conn().Publish(question, make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
}

// useUpKept tells so much that what the build tells next comes too fast, but for what fits into little more.
func useUpKept(t *testing.T, build jetstream.JetStream, run string) {
	t.Helper()
	for _, size := range []int{250 << 10, 1 << 10} {
		subject, data := fact(t, ended(run, size))
		for most := 2000; ; most-- {
			_, err := build.Publish(t.Context(), subject, data)
			if refused(err) == 429 {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if most == 0 {
				t.Fatalf("all messages of %d bytes were taken", size)
			}
		}
	}
}

func TestWhoAsksTooFastLearnsIt(t *testing.T) {
	t.Parallel()
	_, build := open(t)
	stream, err := build.Stream(t.Context(), wire.ResultStream)
	if err != nil {
		t.Fatal(err)
	}
	asked := fmt.Sprintf("spillway.results.%s.code.run", strings.Repeat("c", 1<<10))
	for range 20 {
		useUpAsked(t, build)
		_, err = stream.GetLastMsgForSubject(t.Context(), asked)
		if streams.IsTooFast(err) {
			return
		}
	}
	t.Errorf("the last answer was %v, want that it came too fast", err)
}

func TestALookupThatCameTooFastWaits(t *testing.T) {
	t.Parallel()
	_, build := open(t)
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	lookup := wire.Lookup{Run: "own-1", Shared: true}
	for i := range 500 {
		lookup.Keys = append(lookup.Keys, wire.NewResultKey(predictor.StageID{App: "app", Build: "1", Name: "s"}, false, "",
			json.RawMessage(strconv.Itoa(i))))
	}
	useUpAsked(t, build)
	found, err := results.New(build, store, results.Signing{Public: public}).Find(t.Context(), lookup)
	if err != nil || len(found) != len(lookup.Keys) {
		t.Errorf("%d answers, %v; want %d", len(found), err, len(lookup.Keys))
	}
}

// closeRecorder waits until a recorder has sent all that it was told.
func closeRecorder(t *testing.T, recorder *loop.Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), natstest.Patience)
	defer cancel()
	if err := recorder.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestHintsThatCameTooFastAreSentAgain has a build tell more at once than NATS takes for it.
func TestHintsThatCameTooFastAreSentAgain(t *testing.T) {
	t.Parallel()
	engine, build := open(t)
	useUpKept(t, build, "own-1")
	recorder := loop.NewRecorder(build, &loop.RecorderOptions{Acknowledged: true})
	const hints = 4000
	for i := range hints {
		recorder.Tell(predictor.Scheduled{
			Run: "own-1", Stage: predictor.StageID{App: "app", Name: strings.Repeat("s", 300)}, Expected: i + 1,
		})
	}
	recorder.Tell(predictor.GoalChanged{Run: "own-1"})
	closeRecorder(t, recorder)
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[wire.Kind]uint64{wire.KindScheduled: hints, wire.KindGoalChanged: 1} {
		subject := wire.LoopSubject(kind)
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(subject))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.State.Subjects[subject]; got != want {
			t.Errorf("%d messages on %s, want %d", got, subject, want)
		}
	}
	if got := recorder.Dropped(); got != 0 {
		t.Errorf("%d hints were dropped", got)
	}
}

// TestGoalsThatCameTooFastKeepTheirOrder has a build tell goals of a run among hints: the last one is in force.
func TestGoalsThatCameTooFastKeepTheirOrder(t *testing.T) {
	t.Parallel()
	engine, build := open(t)
	useUpKept(t, build, "own-1")
	recorder := loop.NewRecorder(build, &loop.RecorderOptions{Acknowledged: true})
	const goals = 20
	for i := range goals {
		for range 100 {
			recorder.Tell(predictor.Scheduled{
				Run: "own-1", Stage: predictor.StageID{App: "app", Name: strings.Repeat("s", 300)}, Expected: 1,
			})
		}
		recorder.Tell(predictor.GoalChanged{Run: "own-1", Goal: predictor.Goal{Deadline: time.Duration(i+1) * time.Second}})
	}
	closeRecorder(t, recorder)
	stream, err := engine.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	var sequence uint64
	for i := range goals {
		message, err := stream.GetMsg(t.Context(), sequence+1,
			jetstream.WithGetMsgSubject(wire.LoopSubject(wire.KindGoalChanged)))
		if err != nil {
			t.Fatal(err)
		}
		sequence = message.Sequence
		decoded, err := wire.DecodeMessage(message.Data)
		if err != nil {
			t.Fatal(err)
		}
		changed, is := decoded.Event.(predictor.GoalChanged)
		if want := time.Duration(i+1) * time.Second; !is || changed.Goal.Deadline != want {
			t.Fatalf("goal %d: got %+v, want a deadline of %s", i, decoded.Event, want)
		}
	}
}

// TestABuildThatIsToldToWaitIsNotSentAway has a build make more entries at once than it may, many times over.
func TestABuildThatIsToldToWaitIsNotSentAway(t *testing.T) {
	t.Parallel()
	server, _ := start(t)
	cut := make(chan struct{}, 100)
	build := server.Dial(server.Admit("app@1", app("app", "own")),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { cut <- struct{}{} }))
	told := 0
	for first := 0; told < 15_000; first += 1000 {
		if first > 200_000 {
			t.Fatalf("it was told to wait %d times after %d entries", told, first)
		}
		var sent []jetstream.PubAckFuture
		for i := range 1000 {
			future, err := build.PublishAsync(fmt.Sprintf("$KV.%s.%032x", wire.EndBucket, first+i), []byte("done"))
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, future)
		}
		for _, future := range sent {
			select {
			case <-future.Ok():
			case err := <-future.Err():
				if refused(err) != 429 {
					t.Fatal(err)
				}
				told++
			case <-time.After(natstest.Patience):
				t.Fatal("no answer")
			}
		}
	}
	if len(cut) > 0 {
		t.Error("it was sent away")
	}
}

// stand is a server that lets the worker of one build in by a proxy of the test's own.
type stand struct{ proxy *natsaccess.Proxy }

// Check implements natsserver.Authentication.
func (s *stand) Check(client natsserver.ClientAuthentication) bool {
	name := client.GetOpts().Username
	return name == "" || s.proxy.Register(client, name) == nil
}

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newStand starts a server, with JetStream or without, and its proxy. Dial connects as a build, or without a name as
// the engine.
func newStand(t *testing.T, logger *slog.Logger, store bool) (
	server *natsserver.Server, proxy *natsaccess.Proxy, dial func(name string) *nats.Conn,
) {
	t.Helper()
	at := &stand{}
	server, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: store, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		CustomClientAuthentication: at,
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Start()
	if !server.ReadyForConnections(natstest.Patience) {
		t.Fatal("NATS is not ready")
	}
	at.proxy = natsaccess.New(server, &natsaccess.Options{Logger: logger})
	t.Cleanup(func() {
		at.proxy.Close()
		server.Shutdown()
		server.WaitForShutdown()
	})
	return server, at.proxy, func(name string) *nats.Conn {
		t.Helper()
		connection, err := nats.Connect(server.ClientURL(), nats.UserInfo(name, ""), nats.NoReconnect())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(connection.Close)
		return connection
	}
}

// TestARefusalThatNobodyHearsIsToldTheEngine has a build send what is refused without asking for an answer.
func TestARefusalThatNobodyHearsIsToldTheEngine(t *testing.T) {
	t.Parallel()
	log := &lines{}
	_, proxy, dial := newStand(t, slog.New(slog.NewTextHandler(log, nil)), true)
	release, err := proxy.Admit("app@1", app("app", "own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	build := dial("app@1")
	subject, data := fact(t, predictor.GoalChanged{Run: "another-1"})
	for range 3 {
		if err := build.Publish(subject, data); err != nil {
			t.Fatal(err)
		}
	}
	// It comes behind those.
	if _, err := build.Request("$JS.API.STREAM.INFO."+wire.ResultStream, nil, patience); err != nil {
		t.Fatal(err)
	}
	told := log.String()
	if strings.Count(told, "\n") != 1 || !strings.Contains(told, "build=app@1") ||
		!strings.Contains(told, `another-1`) || !strings.Contains(told, "messages=1") {
		t.Errorf("told:\n%s\nwant one line for now", told)
	}
}

func TestABuildThatWasSentAwayIsNotLetInForAWhile(t *testing.T) {
	t.Parallel()
	_, proxy, dial := newStand(t, nil, true)
	release, err := proxy.Admit("app@1", app("app", "own"))
	if err != nil {
		t.Fatal(err)
	}
	build := dial("app@1")
	for deadline := time.Now().Add(natstest.Patience); build.IsConnected(); {
		if time.Now().After(deadline) {
			t.Fatal("it may send whatever it likes")
		}
		_ = build.Publish(wire.LoopSubject(wire.KindScheduled), []byte("{}")) // which is refused
	}
	release()
	_, err = proxy.Admit("app@1", app("app", "own"))
	barred, is := errors.AsType[*natsaccess.BarredError](err)
	if !is || !errors.Is(err, natsaccess.ErrBarred) {
		t.Fatalf("let in again: %v, want that it is barred", err)
	}
	if left := time.Until(barred.Until); left > 10*time.Second {
		t.Errorf("it is barred for %v more", left)
	}
	if release, err = proxy.Admit("other@1", app("other", "p")); err != nil {
		t.Errorf("another build: %v", err)
	}
	release()
}

// TestTheAccountOfABuildThatCouldNotBeForgottenIsUsedAgain has the store of NATS closed while builds come and go, as on
// a full disk.
func TestTheAccountOfABuildThatCouldNotBeForgottenIsUsedAgain(t *testing.T) {
	t.Parallel()
	server, proxy, dial := newStand(t, nil, true)
	engine, err := jetstream.New(dial(""))
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.EnsureStreams(t.Context(), engine); err != nil {
		t.Fatal(err)
	}
	visit := func(name string) {
		t.Helper()
		release, err := proxy.Admit(name, app("app", "own"))
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	visit("app@1")
	store := *server.JetStreamConfig()
	store.StoreDir = filepath.Dir(store.StoreDir) // NATS has added a part of its own
	accounts := server.NumLoadedAccounts()
	if err := server.ShutdownJetStream(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		visit("app@1")
	}
	if got := server.NumLoadedAccounts(); got != accounts {
		t.Errorf("the server has %d accounts, want the %d from before: the same build came again", got, accounts)
	}
	visit("app@2") // must not get what may be left of the first
	if got := server.NumLoadedAccounts(); got != accounts+1 {
		t.Errorf("the server has %d accounts, want another one than the %d from before", got, accounts)
	}
	if err := server.EnableJetStream(&store); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		visit(fmt.Sprintf("app@%d", 3+i))
	}
	if got := server.NumLoadedAccounts(); got != accounts+1 {
		t.Errorf("the server has %d accounts, want the %d from before: they can be emptied", got, accounts+1)
	}
	release, err := proxy.Admit("app@1", app("app", "own"))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	build, err := jetstream.New(dial("app@1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := build.CreateConsumer(t.Context(), wire.LoopStream, jetstream.ConsumerConfig{
		FilterSubject: wire.LoopSubject(wire.KindRunEnded),
	}); err != nil {
		t.Errorf("a consumer of one that came back: %v", err)
	}
}

// TestABuildGoesOnAfterTheStoreWasOpenedAnew has the store closed and opened, as after a full disk, while a build is
// connected.
func TestABuildGoesOnAfterTheStoreWasOpenedAnew(t *testing.T) {
	t.Parallel()
	server, proxy, dial := newStand(t, nil, true)
	engine, err := jetstream.New(dial(""))
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.EnsureStreams(t.Context(), engine); err != nil {
		t.Fatal(err)
	}
	release, err := proxy.Admit("app@1", app("app", "own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	build, err := jetstream.New(dial("app@1"))
	if err != nil {
		t.Fatal(err)
	}
	store := *server.JetStreamConfig()
	store.StoreDir = filepath.Dir(store.StoreDir) // NATS has added a part of its own
	if err := errors.Join(server.ShutdownJetStream(), server.EnableJetStream(&store)); err != nil {
		t.Fatal(err)
	}
	if _, err := build.CreateConsumer(t.Context(), wire.LoopStream, jetstream.ConsumerConfig{
		FilterSubject: wire.LoopSubject(wire.KindRunEnded),
	}); err != nil {
		t.Errorf("a question: %v", err)
	}
	subject, data := fact(t, ended("own-1", 10))
	if _, err := build.Publish(t.Context(), subject, data); err != nil {
		t.Errorf("an end: %v", err)
	}
}

// TestABuildGoesOnWhileItsConsumersAreLookedFor has the test answer in place of JetStream: not to the question which
// consumers there are.
func TestABuildGoesOnWhileItsConsumersAreLookedFor(t *testing.T) {
	t.Parallel()
	_, proxy, dial := newStand(t, nil, false)
	engine := dial("")
	var looks atomic.Int32
	gone := make(chan *nats.Msg, 100)
	for subject, answer := range map[string]func(*nats.Msg){
		"$JS.API.CONSUMER.CREATE.>": func(request *nats.Msg) { _ = request.Respond([]byte(`{"name":"made"}`)) },
		"$JS.API.STREAM.INFO.>":     func(request *nats.Msg) { _ = request.Respond([]byte(`{}`)) },
		"$JS.API.CONSUMER.INFO.>": func(request *nats.Msg) {
			looks.Add(1)
			gone <- request
		},
	} {
		if _, err := engine.Subscribe(subject, answer); err != nil {
			t.Fatal(err)
		}
	}
	if err := engine.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	release, err := proxy.Admit("app@1", app("app", "own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	build := dial("app@1")
	create := func() string {
		t.Helper()
		answer, err := build.Request("$JS.API.CONSUMER.CREATE."+wire.LoopStream+".mine."+wire.LoopSubject(wire.KindRunEnded),
			[]byte(`{}`), patience)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer.Data)
	}
	for range 16 {
		if answer := create(); !strings.Contains(answer, "made") {
			t.Fatal(answer)
		}
	}
	if answer := create(); !strings.Contains(answer, `"code":429`) {
		t.Errorf("one too many: %s, want to be told to wait", answer)
	}
	if _, err := build.Request("$JS.API.STREAM.INFO."+wire.ResultStream, nil, patience); err != nil {
		t.Error(err)
	}
	if got := looks.Load(); got > 1 {
		t.Errorf("%d consumers were asked for before the next request went on", got)
	}
	go func() {
		for request := range gone {
			_ = request.Respond([]byte(`{"error":{"code":404}}`))
		}
	}()
	t.Cleanup(func() { close(gone) })
	for deadline := time.Now().Add(patience); ; {
		if strings.Contains(create(), "made") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("none can be made though all are gone")
		}
	}
}
