//go:build linux

package hostscheck_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// key names an attempt.
type key struct {
	run, task string
	number    int
}

// stream opens JetStream of an engine that started its own, as its owner.
func (s *stack) stream() jetstream.JetStream {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.state, "keys", "nats.json"))
	var owner struct {
		URL      string `json:"url"`
		User     string `json:"user"`
		Password string `json:"password"`
	}
	if err == nil {
		err = json.Unmarshal(text, &owner)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return openStream(s.t, s.host, owner.URL, nats.UserInfo(owner.User, owner.Password))
}

// dialer connects as a host does.
type dialer struct{ host *host }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return d.host.dial(ctx, network, address)
}

func openStream(tb testing.TB, from *host, urls string, options ...nats.Option) jetstream.JetStream {
	tb.Helper()
	connection, err := nats.Connect(urls, append(options, nats.SetCustomDialer(dialer{from}), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(connection.Close)
	js, err := jetstream.New(connection)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

// records are all Records that the loop's stream holds of some runs, in its order.
func records(tb testing.TB, js jetstream.JetStream, runs []string) (found []predictor.Record) {
	tb.Helper()
	for _, message := range told(tb, js, wire.KindRecord) {
		if record, is := message.Event.(predictor.Record); is && slices.Contains(runs, record.Run) {
			found = append(found, record)
		}
	}
	return found
}

// told is all that the loop's stream holds of a kind, in its order. Where a cluster elects meanwhile, it is read again
// from its beginning.
func told(tb testing.TB, js jetstream.JetStream, kind wire.Kind) (found []wire.Message) {
	tb.Helper()
	var err error
	took := until(tb, "the loop's stream is read to its end", func() bool {
		found, err = readStream(tb.Context(), js, kind)
		if err != nil {
			tb.Logf("read the loop's stream: %v", err)
			time.Sleep(time.Second)
		}
		return err == nil
	})
	if took > time.Minute {
		tb.Logf("reading the loop's stream took %s", tenths(took))
	}
	return found
}

func readStream(ctx context.Context, js jetstream.JetStream, kind wire.Kind) (found []wire.Message, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := js.Stream(ctx, wire.LoopStream)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{wire.LoopSubject(kind)},
	})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages() // Next of the consumer would make another one each time
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	left := consumer.CachedInfo().NumPending
	for left > 0 {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("%d messages before its end: %w", left, err)
		}
		meta, err := message.Metadata()
		if err != nil {
			return nil, err
		}
		left = meta.NumPending
		decoded, err := wire.DecodeMessage(message.Data())
		if err != nil {
			return nil, err
		}
		found = append(found, decoded)
	}
	return found, nil
}

// account is what some runs came to.
type account struct {
	views    map[string]ledger.RunView
	attempts map[string][]timeline.Attempt
	records  []predictor.Record
	again    []predictor.Record // those of tasks that succeeded again
}

// settle waits for the end of runs, and looks that each task has succeeded once, each Record is there once, and the
// ledger has each attempt once, at what its Record says.
func (s *stack) settle(js jetstream.JetStream, runs ...string) (a account) {
	s.t.Helper()
	a = s.settleAgain(js, runs...)
	for _, first := range a.again {
		s.t.Errorf("task %s of run %s has succeeded on %s at %s, and again", first.Task, first.Run, first.Host, first.At)
	}
	return a
}

// settleAgain settles runs of which tasks may have succeeded again.
func (s *stack) settleAgain(js jetstream.JetStream, runs ...string) (a account) {
	s.t.Helper()
	a = account{views: map[string]ledger.RunView{}, attempts: map[string][]timeline.Attempt{}}
	for _, run := range runs {
		a.views[run] = s.succeeds(run)
	}
	a.records = records(s.t, js, runs)
	recorded := map[key]predictor.Record{}
	done := map[key]predictor.Record{}
	for _, record := range a.records {
		of := key{record.Run, record.Task, record.Attempt}
		if before, twice := recorded[of]; twice {
			s.t.Errorf("attempt %v has two Records: %s on %s at %s, and %s on %s at %s", of, before.Outcome, before.Host,
				before.At, record.Outcome, record.Host, record.At)
		}
		recorded[of] = record
		if record.Outcome != predictor.Succeeded {
			continue
		}
		task := key{record.Run, record.Task, 0}
		if first, again := done[task]; again {
			a.again = append(a.again, first)
		} else {
			done[task] = record
		}
	}
	for _, run := range runs {
		s.wantLedger(&a, run, recorded, done)
	}
	return a
}

// wantLedger compares the ledger's account of a run with its Records.
func (s *stack) wantLedger(a *account, run string, recorded, done map[key]predictor.Record) {
	s.t.Helper()
	view := a.views[run]
	var attempts []timeline.Attempt
	var sum quantity.Money
	// What was lost may be told after the run has ended.
	until(s.t, "the ledger has the attempts of "+run, func() bool {
		var err error
		if attempts, err = s.attempts(run); err != nil {
			return false
		}
		if view, err = s.run(run); err != nil {
			return false
		}
		sum = 0
		for _, attempt := range attempts {
			if attempt.Outcome == "" {
				return false
			}
			sum += attempt.Cost
		}
		return sum == view.Totals.Cost
	})
	a.views[run], a.attempts[run] = view, attempts
	seen := map[key]bool{}
	for _, attempt := range attempts {
		of := key{run, attempt.Task, attempt.Number}
		if seen[of] {
			s.t.Errorf("the ledger has attempt %v twice", of)
		}
		seen[of] = true
		record, has := recorded[of]
		switch {
		case !has && attempt.Outcome != predictor.Lost:
			s.t.Errorf("the ledger has attempt %v (%s), and there is no Record of it", of, attempt.Outcome)
		case has && (record.Cost != attempt.Cost || record.Outcome != attempt.Outcome):
			s.t.Errorf("attempt %v: the ledger has %s for %d picodollars, its Record %s for %d", of, attempt.Outcome,
				attempt.Cost, record.Outcome, record.Cost)
		}
	}
	for of := range recorded {
		if of.run == run && !seen[of] {
			s.t.Errorf("attempt %v has a Record and is not in the ledger", of)
		}
	}
	scheduled := 0
	for _, stage := range view.Stages {
		scheduled += stage.Scheduled
	}
	succeeded := 0
	for task := range done {
		if task.run == run {
			succeeded++
		}
	}
	// How many there are the account of one machine says: what workflows tell of tasks is told again by a workflow task
	// that is tried again, and may be lost.
	if succeeded != scheduled {
		s.t.Logf("%d tasks of run %s were told to be scheduled, and %d succeeded", scheduled, run, succeeded)
	}
	if view.State == "succeeded" && len(attempts) < succeeded {
		s.t.Errorf("the ledger has %d attempts of run %s, of which %d tasks succeeded", len(attempts), run, succeeded)
	}
}

// hosts counts the attempts that succeeded by host.
func (a account) hosts() map[string]int {
	counts := map[string]int{}
	for _, record := range a.records {
		if record.Outcome == predictor.Succeeded {
			counts[record.Host]++
		}
	}
	return counts
}

// report is what a run ended with, and how many tasks of each stage succeeded: what must not depend on where it ran.
func (a account) report(run string) string {
	view := a.views[run]
	var result any
	_ = json.Unmarshal(view.Result, &result) // a text that is no JSON is compared as nothing, and the counts say that
	stages, seen := map[string]int{}, map[string]bool{}
	for _, record := range a.records {
		if record.Run == run && record.Outcome == predictor.Succeeded && !seen[record.Task] {
			stages[record.Stage.Name]++
			seen[record.Task] = true
		}
	}
	text, err := json.MarshalIndent(map[string]any{"result": result, "tasks": stages}, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wantSame compares what two runs came to.
func wantSame(tb testing.TB, what, want, got string) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s differs (-on one machine +here):\n%s", what, diff)
	}
	if strings.Contains(got, `"result": null`) {
		tb.Errorf("%s has no result: %s", what, got)
	}
}

// counted writes counts by name.
func counted(counts map[string]int) string {
	var parts []string
	for name, count := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", name, count))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
