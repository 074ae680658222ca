package documents

import (
	"errors"
	"testing"
	"time"
)

func TestAWatchThatMayHaveMissedAMarkBeginsAnew(t *testing.T) {
	t.Parallel()
	type look struct {
		after      time.Duration // since the watch began
		last, seen uint64        // the last change, and what was told of until then
		want       error
	}
	for name, looks := range map[string][]look{
		"all is told of": {{2 * time.Second, 5, 5, nil}, {4 * time.Second, 9, 9, nil}, {6 * time.Second, 9, 9, nil}},
		"what was changed just now comes until the next look": {
			{2 * time.Second, 8, 5, nil}, {4 * time.Second, 8, 8, nil},
		},
		"a change is not told of": {{2 * time.Second, 8, 5, nil}, {4 * time.Second, 9, 7, errBehind}},
		"NATS is away for a while": {
			{2 * time.Second, 5, 5, nil}, {unsureMost, 5, 5, nil}, {2*unsureMost - time.Second, 5, 5, nil},
		},
		"NATS is away for long, and what was changed first comes late": {
			{2 * time.Second, 5, 5, nil}, {unsureMost + 3*time.Second, 9, 9, errUnsure},
		},
		"the first answer comes late": {{unsureMost + time.Second, 5, 5, errUnsure}},
		"the clock is set back":       {{-unsureMost - time.Second, 5, 5, errUnsure}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
			far := watched{seen: 5, at: began}
			for _, one := range looks {
				far.seen = one.seen
				if err := far.look(one.last, began.Add(one.after)); !errors.Is(err, one.want) {
					t.Errorf("%s after it began: got %v, want %v", one.after, err, one.want)
				}
			}
		})
	}
}
