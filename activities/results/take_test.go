package results_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
)

// between is a JetStream with something that happens before each publish, once it is set.
type between struct {
	jetstream.JetStream

	happen func() error
}

func (b *between) PublishMsg(
	ctx context.Context, message *nats.Msg, options ...jetstream.PublishOpt,
) (*jetstream.PubAck, error) {
	if b.happen != nil {
		if err := b.happen(); err != nil {
			return nil, err
		}
	}
	return b.JetStream.PublishMsg(ctx, message, options...)
}

// openBetween returns results of which something happens between the look at a result and its taking.
func openBetween(t *testing.T) (*results.Results, *between) {
	t.Helper()
	signing := newSigning(t)
	_, js, dir := openOn(t, signing)
	store, err := artifact.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	with := &between{JetStream: js}
	return results.New(with, store, signing), with
}

// purge forgets the results of a run, as a collection does before it looks what is still named.
func (b *between) purge(t *testing.T, run string) error {
	t.Helper()
	stream, err := b.Stream(t.Context(), wire.ResultStream)
	if err != nil {
		return err
	}
	return stream.Purge(t.Context(), jetstream.WithPurgeSubject(wire.ResultSubject(wire.ResultKey{}, run)))
}

// TestAResultIsNotTakenFromARunThatHasGivenItBack has a collection purge a result after it was looked at: what it names
// may go, since nobody was seen to hold it.
func TestAResultIsNotTakenFromARunThatHasGivenItBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		other  string // a run that has made the same result before
		lookup wire.Lookup
		want   string
	}{
		{name: "shared", lookup: wire.Lookup{Shared: true}},
		{name: "of the run that is tried again", lookup: wire.Lookup{Run: "one"}},
		{name: "shared, and another run has it", other: "zero", lookup: wire.Lookup{Shared: true}, want: `zero: "made"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, js := openBetween(t)
			if c.other != "" {
				keep(t, r, c.other, "train", "b1", `1`, `"made"`)
			}
			keep(t, r, "one", "train", "b1", `1`, `"made"`)
			js.happen = func() error { return js.purge(t, "one") }
			c.lookup.For, c.lookup.Keys = "two", []wire.ResultKey{key("train", "b1", `1`)}
			if diff := cmp.Diff([]string{c.want}, find(t, r, c.lookup)); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
			want := 0
			if c.want != "" {
				want = 1
			}
			if kept, _, err := r.OfRun(t.Context(), "two"); err != nil || len(kept) != want {
				t.Errorf("kept of the run that looked: %+v, %v; want %d", kept, err, want)
			}
		})
	}
}

// TestAResultThatIsMadeAnewMeanwhileIsTaken has the run that made a result make it again while another takes it.
func TestAResultThatIsMadeAnewMeanwhileIsTaken(t *testing.T) {
	t.Parallel()
	r, js := openBetween(t)
	keep(t, r, "one", "train", "b1", `1`, `"made"`)
	js.happen = func() error {
		js.happen = nil
		keep(t, r, "one", "train", "b1", `1`, `"made anew"`)
		return nil
	}
	lookup := wire.Lookup{Shared: true, For: "two", Keys: []wire.ResultKey{key("train", "b1", `1`)}}
	if diff := cmp.Diff([]string{`one: "made anew"`}, find(t, r, lookup)); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

// TestAResultThatCannotBeKeptForTheRunIsNotTakenAndTheOthersAre has the server refuse one of two.
func TestAResultThatCannotBeKeptForTheRunIsNotTakenAndTheOthersAre(t *testing.T) {
	t.Parallel()
	r, js := openBetween(t)
	keep(t, r, "one", "train", "b1", `1`, `"made"`)
	keep(t, r, "one", "train", "b1", `2`, `"made"`)
	full := errors.New("no room")
	var refused atomic.Bool
	js.happen = func() error {
		if refused.Swap(true) {
			return nil
		}
		return full
	}
	found, err := r.Find(t.Context(), wire.Lookup{
		Shared: true, For: "two", Keys: []wire.ResultKey{key("train", "b1", `1`), key("train", "b1", `2`)},
	})
	if !errors.Is(err, full) || len(found) != 2 || (found[0] == nil) == (found[1] == nil) {
		t.Errorf("found %+v, %v; want one, and why not the other", found, err)
	}
	if kept, _, err := r.OfRun(t.Context(), "two"); err != nil || len(kept) != 1 {
		t.Errorf("kept of the run that looked: %+v, %v; want one", kept, err)
	}
}
