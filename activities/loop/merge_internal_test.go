package loop

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

// flaky is a JetStream that does not answer at first, and then has streams of ten messages.
type flaky struct {
	jetstream.JetStream

	streams, messages int // how many look-ups have no answer
	stored            time.Time
}

var errFlaky = errors.New("no answer")

func (f *flaky) Stream(context.Context, string) (jetstream.Stream, error) {
	if f.streams--; f.streams >= 0 {
		return nil, errFlaky
	}
	return flakyStream{of: f}, nil
}

type flakyStream struct {
	jetstream.Stream

	of *flaky
}

func (s flakyStream) CachedInfo() *jetstream.StreamInfo {
	return &jetstream.StreamInfo{State: jetstream.StreamState{Msgs: 10, FirstSeq: 1, LastSeq: 10}}
}

func (s flakyStream) GetMsg(context.Context, uint64, ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	if s.of.messages--; s.of.messages >= 0 {
		return nil, errFlaky
	}
	return &jetstream.RawStreamMsg{Time: s.of.stored}, nil
}

// TestSamplesThatACheckpointHasAreNotHandedOnAgainBecauseALookUpFails goes on at the fifth message.
func TestSamplesThatACheckpointHasAreNotHandedOnAgainBecauseALookUpFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		streams, messages int
		next              uint64
		want              time.Duration // how long ago the first samples were stored that are handed on; 0 is all of them
	}{
		"all answers":               {next: 5, want: time.Hour},
		"a stream has none at once": {streams: 2, next: 5, want: time.Hour},
		"nor has a message":         {streams: 1, messages: 2, next: 5, want: time.Hour},
		"no answer":                 {streams: 1000, next: 5, want: samplesAgain},
		"no message":                {messages: 1000, next: 5, want: samplesAgain},
		"from the oldest on":        {streams: 1000, next: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				js := &flaky{streams: test.streams, messages: test.messages, stored: begun.Add(-time.Hour)}
				m := merger{
					facts:   &source{name: wire.LoopStream, next: test.next},
					samples: &source{name: wire.SampleStream, next: 1},
				}
				m.open(t.Context(), js, slog.New(slog.DiscardHandler))
				switch since := m.samples.since; {
				case test.want == 0:
					if !since.IsZero() || time.Since(begun) != 0 {
						t.Errorf("samples begin at %v after %s, want all of them at once", since, time.Since(begun))
					}
				case since.IsZero():
					t.Error("all samples are handed on again")
				default:
					if got := begun.Sub(since); got > test.want || got < test.want-time.Minute {
						t.Errorf("samples of %s are handed on again, want about %s", got, test.want)
					}
				}
			})
		})
	}
}
