package logs

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

// stored is one message of a stream.
type stored struct {
	sequence uint64
	at       time.Time
	lines    []Line
}

// storedMessages draws messages of three attempts, whose hosts' clocks are off, in the order of the stream.
func storedMessages() *rapid.Generator[[]stored] {
	return rapid.Custom(func(t *rapid.T) []stored {
		var all []stored
		now := begin
		last := [3]time.Time{begin, begin, begin}
		skew := [3]time.Duration{0, time.Duration(rapid.IntRange(-3, 3).Draw(t, "skew")) * time.Second, 0}
		for i := range rapid.IntRange(0, 20).Draw(t, "messages") {
			now = now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond)
			attempt := rapid.IntRange(0, 2).Draw(t, "attempt")
			message := stored{sequence: uint64(2*i + 1), at: now}
			for line := range rapid.IntRange(0, 4).Draw(t, "lines") {
				if at := now.Add(skew[attempt] - time.Duration(rapid.IntRange(0, 200).Draw(t, "age"))*time.Millisecond); at.After(
					last[attempt]) {
					last[attempt] = at
				}
				message.lines = append(message.lines, Line{
					LogSource: wire.LogSource{Attempt: attempt}, LogLine: wire.LogLine{
						At:   last[attempt],
						Text: fmt.Sprint(message.sequence, "/", line),
					},
					Sequence: message.sequence, Index: line,
				})
			}
			all = append(all, message)
		}
		return all
	})
}

// merged returns the lines in the order in which a merger hands them out, beginning with the message of sequence from.
func merged(messages []stored, from uint64) []Line {
	var m merger
	var out []Line
	drain := func(until time.Time) {
		for {
			line, found := m.pop(until)
			if !found {
				return
			}
			out = append(out, line)
		}
	}
	for _, message := range messages {
		if message.sequence >= from {
			m.push(message.sequence, message.at, message.lines)
			drain(message.at.Add(-hold))
		}
	}
	drain(begin.Add(time.Hour))
	return out
}

func names(lines []Line) []string {
	var all []string
	for _, line := range lines {
		all = append(all, line.Text)
	}
	return all
}

func TestAttemptsStayInOrderAndNothingIsLostOrTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		messages := storedMessages().Draw(t, "messages")
		got := merged(messages, 0)
		for attempt := range 3 {
			var printed, handed []Line
			for _, message := range messages {
				printed = append(printed, message.lines...)
			}
			printed = slices.DeleteFunc(printed, func(l Line) bool { return l.Attempt != attempt })
			handed = slices.DeleteFunc(slices.Clone(got), func(l Line) bool { return l.Attempt != attempt })
			if diff := gocmp.Diff(names(printed), names(handed)); diff != "" {
				t.Fatalf("attempt %d (-printed +handed out):\n%s", attempt, diff)
			}
		}
	})
}

func TestLinesOfSeveralAttemptsAreInOrderOfTimeWhenTheirClocksAreRight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		messages := storedMessages().Draw(t, "messages")
		for _, message := range messages {
			for _, line := range message.lines {
				if line.At.After(message.at) || line.At.Before(message.at.Add(-hold)) {
					t.Skip("a clock is off")
				}
			}
		}
		got := merged(messages, 0)
		if !slices.IsSortedFunc(got, func(a, b Line) int {
			return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Sequence, b.Sequence))
		}) {
			t.Fatalf("got %v", got)
		}
	})
}

func TestAReaderThatGoesOnAtAnyLineMissesNothingAndSeesNothingTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		messages := storedMessages().Draw(t, "messages")
		all := merged(messages, 0)
		if len(all) == 0 {
			t.Skip("nothing was printed")
		}
		var seen Seen
		var handled []string
		take := func(lines []Line) {
			for _, line := range lines {
				if !seen.Again(line) {
					handled = append(handled, line.Text)
				}
			}
		}
		take(all[:rapid.IntRange(1, len(all)).Draw(t, "first break")])
		again := merged(messages, seen.Resume())
		take(again[:rapid.IntRange(0, len(again)).Draw(t, "second break")])
		take(merged(messages, seen.Resume()))
		want := names(all)
		slices.Sort(want)
		slices.Sort(handled)
		if diff := gocmp.Diff(want, handled); diff != "" {
			t.Fatalf("lines (-printed +handled):\n%s", diff)
		}
	})
}
