package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/telemetry"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// empty is an observer that has taken in nothing.
func empty(before extent) *observer {
	return newObserver(telemetry.NewMetrics(), true, before, slog.New(slog.DiscardHandler))
}

// known is all that an observer knows, as a checkpoint has it.
func known(t *testing.T, o *observer) []byte {
	t.Helper()
	var written bytes.Buffer
	now, _, err := o.knows(position{Sequence: 1 << 60})
	if err == nil {
		err = now.encode(&written)
	}
	if err != nil {
		t.Fatal(err)
	}
	return written.Bytes()
}

// pick is one of some.
func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// drawLine draws what the loop tells next: of few runs and tasks, so that events meet. Runs come and go.
func drawLine(r *rand.Rand, sequence, sample uint64) loop.Line {
	run := fmt.Sprint("r", sequence/40+r.Uint64N(4))
	stage := predictor.StageID{App: "app", Build: "b", Name: pick(r, []string{"prep", "train"})}
	task, attempt := fmt.Sprint("t", r.IntN(6)), 1+r.IntN(2)
	at := dawn.Add(time.Duration(sequence+sample)*time.Second + time.Duration(r.IntN(1_000_000_000)))
	wall := time.Duration(r.Int64N(int64(time.Minute)))
	memory := quantity.Bytes(r.Int64N(int64(quantity.GiB)))
	size := quantity.Size{CPU: 1000, Memory: memory}
	line := loop.Line{Sequence: sequence, Stored: at}
	switch r.IntN(10) {
	case 0:
		line.Message.Event = predictor.RunStarted{
			Run: run, Pipeline: "p", App: "app", Build: "b", Goal: predictor.Goal{Deadline: wall}, At: at,
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		}
	case 1:
		line.Message.Event = predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at}
	case 2:
		line.Message.Event = predictor.Scheduled{Run: run, Stage: stage, Tasks: attempt, Declared: size, At: at}
	case 3:
		line.Message.Event = predictor.AttemptStarted{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: predictor.Pool, Host: "h", Grant: size, At: at,
		}
	case 4, 5:
		line.Sequence, line.Sample = sequence-1, sample
		line.Message.Event = predictor.Sampled{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: predictor.Pool, Host: "h", Grant: size, CPU: 700,
			Memory: memory, Step: attempt, Metrics: map[string]float64{"loss": wall.Seconds()}, At: at,
		}
	case 6:
		line.Message.Event = predictor.BacklogObserved{Stage: stage, Tasks: attempt, PoolOnly: attempt == 2, At: at}
	case 7:
		line.Message.Event = predictor.HostHeld{
			Host: "h", Capacity: size, PricePerHour: 5, From: at.Add(-time.Minute), At: at,
		}
	case 8:
		line.Message.Decision = &predictor.Decision{ID: strconv.FormatUint(sequence, 10), At: at, Stage: stage, What: "slots"}
	default:
		line.Message.Event = predictor.Record{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: predictor.Pool, Host: "h", Outcome: predictor.Succeeded,
			ScheduledAt: at.Add(-wall), At: at, Cost: 7, Grant: size,
			Usage: quantity.Usage{CPU: wall, Wall: wall, PeakMemory: memory},
		}
	}
	return line
}

// TestAnObserverThatGoesOnFromItsFileKnowsWhatOneKnowsThatTookInAll kills observers at random moments, also while they
// write, and compares the last with one that has taken in the whole stream.
func TestAnObserverThatGoesOnFromItsFileKnowsWhatOneKnowsThatTookInAll(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 2))
		path := filepath.Join(t.TempDir(), checkpointFile)
		var lines []loop.Line
		sequence, sample := uint64(0), uint64(0)
		for range r.IntN(600) {
			line := drawLine(r, sequence+1, sample+1)
			sequence, sample = line.Sequence, max(sample, line.Sample)
			lines = append(lines, line)
		}
		before := extent{min(sequence, 1), sequence}
		whole, cut := empty(before), empty(before)
		take := func(o *observer, line loop.Line) {
			if err := o.apply(line); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range lines {
			take(whole, line)
		}
		next := 0 // of lines
		for next < len(lines) {
			take(cut, lines[next])
			next++
			switch r.IntN(40) {
			case 0:
				if _, err := cut.keepCheckpoint(path, position{}); err != nil {
					t.Fatal(err)
				}
			case 1: // killed while it writes
				if err := os.WriteFile(path+".part", known(t, cut)[:10], 0o600); err != nil {
					t.Fatal(err)
				}
				fallthrough
			case 2: // killed
				read, err := readCheckpoint(path)
				if err != nil {
					t.Fatal(err)
				}
				cut, next = empty(before), 0
				if read != nil {
					cut.resume(read)
					for next < len(lines) && (lines[next].Sample > 0 && lines[next].Sample <= read.at.Sample ||
						lines[next].Sample == 0 && lines[next].Sequence <= read.at.Sequence) {
						next++
					}
				}
			}
		}
		if !bytes.Equal(known(t, whole), known(t, cut)) {
			for _, run := range whole.going() {
				a, _ := whole.run(run)
				b, _ := cut.run(run)
				t.Log(cmp.Diff(a, b, cmpopts.EquateEmpty()))
			}
			t.Logf("metrics: %s", cmp.Diff(whole.metrics.Follows(), cut.metrics.Follows()))
			t.Logf("at: %+v, %+v", whole.at, cut.at)
			t.Fatal("an observer that went on knows something else")
		}
		if whole.starting().Error() != cut.starting().Error() {
			t.Fatalf("it waits for %q, want %q", cut.starting(), whole.starting())
		}
	}
}

func TestAFileThatIsDamagedOrOfAnotherVersionIsNotGoneOnWith(t *testing.T) {
	t.Parallel()
	o := empty(extent{1, 2})
	for i, event := range story("r", 3, dawn)[:2] {
		if err := o.apply(lineOf(uint64(i)+1, event)); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), checkpointFile)
	if _, err := o.keepCheckpoint(path, position{}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if read, err := readCheckpoint(path); err != nil || read.at != o.at {
		t.Fatalf("the whole file: %v, want what was known at %+v", err, o.at)
	}
	refused := func(what string, data []byte, want string) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readCheckpoint(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want that it says %q", what, err, want)
		}
	}
	for cut := 0; cut < len(whole); cut += 1 + len(whole)/50 {
		refused(fmt.Sprintf("the first %d of %d bytes", cut, len(whole)), whole[:cut], "damaged")
	}
	random := rand.New(rand.NewPCG(1, 2))
	header := len("spillway observer checkpoint 00000001 ")
	for range 50 {
		other := bytes.Clone(whole)
		other[header+random.IntN(len(other)-header)] ^= 1 << random.IntN(8)
		refused("a bit is another", other, "")
	}
	refused("more than was written", append(bytes.Clone(whole), 'x'), "damaged")
	newer := bytes.Replace(whole, []byte(" 00000001 "), []byte(" 00000002 "), 1)
	refused("of a newer engine", newer, "version 2, this engine reads 1")
}

// started starts an observer as an engine does, waits until it has caught up, and returns it with how many messages it
// has read.
func (c *chronicle) started(path string) (o *observer, read int, reason error) {
	c.t.Helper()
	first, last, err := loop.Extent(c.t.Context(), c.js)
	if err != nil {
		c.t.Fatal(err)
	}
	o = empty(extent{first, last})
	before, reason, err := openCheckpoint(c.t.Context(), c.js, path)
	if err != nil {
		c.t.Fatal(err)
	}
	from := position{}
	if before != nil {
		o.resume(before)
		from = position{Sequence: before.at.Sequence + 1, Sample: before.at.Sample + 1}
	}
	ctx, stop := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	all := uint64(0)
	if samples, err := c.js.Stream(c.t.Context(), loopwire.SampleStream); err != nil {
		c.t.Fatal(err)
	} else {
		all = samples.CachedInfo().State.LastSeq
	}
	go func() {
		options := &loop.FollowOptions{Samples: from.Sample}
		ended <- loop.Follow(ctx, c.js, from.Sequence, options, func(line loop.Line) error {
			read++
			err := o.apply(line)
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.current() && o.at.Sample >= all {
				stop()
			}
			return err
		})
	}()
	if o.current() && o.at.Sample >= all {
		stop()
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		c.t.Fatal(err)
	}
	return o, read, reason
}

// TestAStartReadsNoMoreThanWhatCameSinceTheLastCheckpoint starts observers behind some runs and behind eight times as
// many: both read the same number of messages.
func TestAStartReadsNoMoreThanWhatCameSinceTheLastCheckpoint(t *testing.T) {
	t.Parallel()
	c := newChronicle(t)
	path := filepath.Join(t.TempDir(), checkpointFile)
	runs := 0
	tell := func(more int) {
		for range more {
			c.tell(story(fmt.Sprint("r", runs), 3, dawn.Add(time.Duration(runs)*time.Minute))...)
			runs++
		}
	}
	var reads []int
	for _, more := range []int{10, 70} {
		tell(more)
		o, _, reason := c.started(path)
		if _, err := o.keepCheckpoint(path, position{}); err != nil || reason != nil {
			t.Fatal(err, reason)
		}
		if _, read, reason := c.started(path); read != 0 || reason != nil {
			t.Errorf("after %d runs an observer that has taken in all reads %d messages again: %v", runs, read, reason)
		}
		tell(1)
		o, read, reason := c.started(path)
		if reason != nil {
			t.Error(reason)
		}
		reads = append(reads, read)
		if view, there := o.run(fmt.Sprint("r", runs-1)); !there || view.State != predictor.RunSucceeded {
			t.Errorf("the last run is %+v", view)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		refolded, all, _ := c.started(path)
		if all < 10*more {
			t.Errorf("without its file an observer reads %d messages of %d runs", all, runs)
		}
		if !bytes.Equal(known(t, refolded), known(t, o)) {
			t.Error("an observer that has read the whole stream knows something else")
		}
		if _, err := o.keepCheckpoint(path, position{}); err != nil {
			t.Fatal(err)
		}
	}
	if reads[0] != reads[1] || reads[0] > 20 {
		t.Errorf("%d messages are read after 10 runs and one more, %d after 80 and one more; want those of one run", reads[0],
			reads[1])
	}
}

// TestAFileOfAnotherStreamIsNotGoneOnWith has the server lose the last messages, and then give their sequences anew.
func TestAFileOfAnotherStreamIsNotGoneOnWith(t *testing.T) {
	t.Parallel()
	c := newChronicle(t)
	path := filepath.Join(t.TempDir(), checkpointFile)
	c.tell(story("r", 2, dawn)...)
	o, _, _ := c.started(path)
	o.at.Sequence += 3 // which the server has lost
	if _, err := o.keepCheckpoint(path, position{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, read, reason := c.started(path)
		if reason == nil || !strings.Contains(reason.Error(), "another stream") || read == 0 {
			t.Errorf("it reads %d messages, since %v; want all of them, since the file is of another stream", read, reason)
		}
		c.tell(story("s", 2, dawn)...)
	}
}

// TestAnUpgradeAndAStepBackForgetNothing has an engine of before, whose file has the one name of all, then this one,
// then a later one, whose file this one cannot read, as it is of another version or the state in it is, and then this
// one again: each goes on from what it or the one
// before knew, and reads what came since.
func TestAnUpgradeAndAStepBackForgetNothing(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(t *testing.T, data []byte) []byte{
		"a file of another version": func(_ *testing.T, data []byte) []byte {
			return bytes.Replace(data, []byte(" 00000001 "), []byte(" 00000002 "), 1)
		},
		"a state of another version": laterState,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upgradeAndStepBack(t, of)
		})
	}
}

// laterState is a checkpoint whose state is one version further, and all else as it was.
func laterState(t *testing.T, data []byte) []byte {
	t.Helper()
	own := fmt.Appendf(nil, `{"v":%d,"term"`, predictor.StateVersion)
	body := data[len(fmt.Sprintf(checkpointHeader, 0, 0, [sha256.Size]byte{})):]
	if bytes.Count(body, own) != 1 {
		t.Fatalf("the checkpoint has %q %d times, want once", own, bytes.Count(body, own))
	}
	body = bytes.Replace(body, own, fmt.Appendf(nil, `{"v":%d,"term"`, predictor.StateVersion+1), 1)
	return append(fmt.Appendf(nil, checkpointHeader, checkpointVersion, len(body), sha256.Sum256(body)), body...)
}

func upgradeAndStepBack(t *testing.T, madeLater func(t *testing.T, data []byte) []byte) {
	t.Helper()
	c := newChronicle(t)
	directory := t.TempDir()
	path := filepath.Join(directory, checkpointFile)
	written := func(name string, at int) string {
		full := filepath.Join(directory, name)
		when := dawn.Add(time.Duration(at) * time.Minute)
		if err := os.Chtimes(full, when, when); err != nil {
			t.Fatal(err)
		}
		return full
	}
	keep := func(o *observer, as string, at int) string {
		t.Helper()
		if _, err := o.keepCheckpoint(path, position{}); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, filepath.Join(directory, as)); err != nil {
			t.Fatal(err)
		}
		return written(as, at)
	}
	c.tell(story("a", 3, dawn)...)
	o, _, _ := c.started(path)
	before := keep(o, "observer.checkpoint", 1)

	o, read, reason := c.started(path)
	if read != 0 || reason != nil {
		t.Errorf("after an upgrade %d messages are read again: %v; want none", read, reason)
	}
	keep(o, checkpointFile, 2)

	more := story("b", 3, dawn.Add(time.Hour))
	c.tell(more...)
	o, _, _ = c.started(path)
	own, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	later := keep(o, "observer-2.9.99.checkpoint", 3)
	data, err := os.ReadFile(later)
	if err != nil {
		t.Fatal(err)
	}
	data = madeLater(t, data)
	for name, content := range map[string][]byte{later: data, path: own} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	written(checkpointFile, 2)
	written("observer-2.9.99.checkpoint", 3)

	back, read, reason := c.started(path)
	if reason != nil || read == 0 || read > len(more) {
		t.Errorf("after a step back %d messages are read: %v; want the %d that came since, at most", read, reason, len(more))
	}
	if !bytes.Equal(known(t, back), known(t, o)) {
		t.Error("after a step back an observer knows something else")
	}
	if _, err := back.keepCheckpoint(path, position{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(before); !os.IsNotExist(err) {
		t.Errorf("the file of two engines ago is still there: %v", err)
	}
	if kept, err := os.ReadFile(later); err != nil || !bytes.Equal(kept, data) {
		t.Errorf("the file of the later engine is not as it was: %v", err)
	}
}

// TestWhatAKilledEngineLeftHalfWrittenIsRemoved has parts of this version and of another, and a file that cannot be
// removed: what was kept is kept all the same, and not once more.
func TestWhatAKilledEngineLeftHalfWrittenIsRemoved(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	path := filepath.Join(directory, checkpointFile)
	var parts []string
	for _, name := range []string{"observer.checkpoint.part", "observer-1.1.1.checkpoint.part"} {
		parts = append(parts, filepath.Join(directory, name))
		if err := os.WriteFile(parts[len(parts)-1], []byte("spill"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stuck := filepath.Join(directory, "observer-1.1.1.checkpoint")
	if err := os.MkdirAll(filepath.Join(stuck, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(directory, "observer-2.2.2.checkpoint")
	if err := os.WriteFile(former, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(stuck, dawn, dawn); err != nil {
		t.Fatal(err)
	}
	o := empty(extent{1, 1})
	var told bytes.Buffer
	o.logger = slog.New(slog.NewTextHandler(&told, nil))
	if err := o.apply(lineOf(1, story("r", 3, dawn)[0])); err != nil {
		t.Fatal(err)
	}
	kept, err := o.keepCheckpoint(path, position{})
	if err != nil || kept != o.at {
		t.Fatalf("kept up to %+v, %v; want %+v", kept, err, o.at)
	}
	if !strings.Contains(told.String(), stuck) {
		t.Errorf("the log says %q, want that %s cannot be removed", told.String(), stuck)
	}
	for _, part := range parts {
		if _, err := os.Stat(part); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", part, err)
		}
	}
}
