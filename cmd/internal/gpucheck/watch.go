package gpucheck

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/procfs"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// watchEvery is the time between two readings of the GPUs.
const watchEvery = 500 * time.Millisecond

// Watch prints a line of JSON about the GPUs every half second, until ctx ends. It is run in a process of its own, by a
// build with cgo.
func Watch(ctx context.Context, w io.Writer) error {
	reader := device.Open()
	defer func() { _ = reader.Close() }() // the process ends
	lines := json.NewEncoder(w)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		reading, err := reader.Read(ctx)
		if errors.Is(err, device.ErrSilent) && time.Since(last) < firstReading {
			continue
		}
		if err != nil {
			return err
		}
		last = time.Now()
		if err := lines.Encode(reading); err != nil {
			return fmt.Errorf("tell of the GPUs: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// watch is a process that reads the GPUs, and what came of it. A nil one watches nothing.
type watch struct {
	cmd   *exec.Cmd
	ended chan struct{}
	mu    sync.Mutex
	seen  touched
	wrong error // why it ended
}

// touched is what was seen of the GPUs during a check.
type touched struct {
	readings int
	first    []device.State
	// most is the memory that was used at most, by UUID; programs are those that were seen on a device.
	most     map[string]quantity.Bytes
	programs map[string][]int
	ours     []int // every process below the check
	// unknown are the devices of whose processes the driver does not tell, or by PIDs of another namespace: one that is
	// that of a process of the check is so by chance.
	unknown map[string]bool
}

// add takes a reading, and the processes below the check at that time.
func (t *touched) add(reading device.Reading, ours []int) {
	if t.readings == 0 {
		t.first, t.most, t.programs = reading.Devices, map[string]quantity.Bytes{}, map[string][]int{}
		t.unknown = map[string]bool{}
	}
	t.readings++
	for _, d := range reading.Devices {
		t.most[d.UUID] = max(t.most[d.UUID], d.Used)
		t.unknown[d.UUID] = t.unknown[d.UUID] || d.PIDsUnknown
		for _, p := range d.Processes {
			if !slices.Contains(t.programs[d.UUID], p.PID) {
				t.programs[d.UUID] = append(t.programs[d.UUID], p.PID)
			}
		}
	}
	for _, pid := range ours {
		if !slices.Contains(t.ours, pid) {
			t.ours = append(t.ours, pid)
		}
	}
}

// foreign is how much the memory of a device may grow that nobody touches: the driver keeps some of each context on a
// device, half of which is more than this.
const foreign = 100 * quantity.MiB

// judge says whether the check's processes were seen on devices other than the assigned one. Where the driver names
// processes by other numbers, as in a container, memory that grew there is what tells.
func (t *touched) judge(assigned string) (outcome Outcome, why, notes []string) {
	if t.readings == 0 || assigned == "" {
		return Skipped, nil, []string{"the GPUs could not be watched"}
	}
	named := len(t.own(assigned)) > 0
	for _, d := range t.first {
		grown := max(t.most[d.UUID]-d.Used, 0)
		own := t.own(d.UUID)
		notes = append(notes, fmt.Sprintf("%s: at most %s more than at the start, %d processes of the check", d.Label(),
			grown, len(own)))
		switch {
		case d.UUID == assigned:
		case len(own) > 0:
			why = append(why, fmt.Sprintf("processes %v of the check were on %s (%s), which was not assigned", own, d.Label(),
				d.UUID))
		case !named && grown > foreign:
			why = append(why, fmt.Sprintf("%s (%s), which was not assigned, had %s more in use than at the start, and the "+
				"driver does not name the check's processes", d.Label(), d.UUID, grown))
		}
	}
	notes = append(notes, fmt.Sprintf("%d readings, %s apart", t.readings, watchEvery))
	switch {
	case len(why) > 0:
		return Failed, why, notes
	case !named && t.most[assigned] <= t.usedFirst(assigned)+foreign:
		return Skipped, nil, append(notes, "nothing was computed on the assigned device while it was watched")
	case len(t.first) == 1:
		return Passed, nil, append(notes, "there is no other device that could have been touched")
	default:
		return Passed, nil, notes
	}
}

// own are the processes of the check that were seen on a device; none where the driver's PIDs may be others'.
func (t *touched) own(uuid string) []int {
	if t.unknown[uuid] {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.programs[uuid]), func(pid int) bool { return !slices.Contains(t.ours, pid) })
}

func (t *touched) usedFirst(uuid string) quantity.Bytes {
	for _, d := range t.first {
		if d.UUID == uuid {
			return d.Used
		}
	}
	return 0
}

// firstReading is how long the driver may take to be opened: where nothing keeps it loaded, up to three seconds for
// each GPU.
const firstReading = time.Minute

// startWatch starts a program that prints readings, and returns the first.
func startWatch(ctx context.Context, spawner *spawn.Spawner, program string) (*watch, device.Reading, error) {
	//nolint:noctx // it outlives the limit of the check, until that is through
	cmd := exec.Command(program, WatchCommand)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, device.Reading{}, fmt.Errorf("watch the GPUs: %w", err)
	}
	var log strings.Builder
	cmd.Stderr, cmd.WaitDelay = &log, time.Second
	if err := spawner.Start(cmd); err != nil {
		return nil, device.Reading{}, fmt.Errorf("watch the GPUs: %w", err)
	}
	w := &watch{cmd: cmd, ended: make(chan struct{})}
	first := make(chan device.Reading, 1)
	go func() {
		defer close(w.ended)
		w.read(out, first)
		err := cmd.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wrong = errors.New(lastLine(log.String()))
		if log.Len() == 0 && err != nil {
			w.wrong = err
		}
	}()
	late := time.NewTimer(firstReading)
	defer late.Stop()
	select {
	case reading := <-first:
		return w, reading, nil
	case <-w.ended:
		return nil, device.Reading{}, w.wrong
	case <-ctx.Done():
		return nil, device.Reading{}, errors.Join(context.Cause(ctx), w.end())
	case <-late.C:
		return nil, device.Reading{}, errors.Join(fmt.Errorf("the driver has not answered for %s", firstReading), w.end())
	}
}

func (w *watch) read(out io.Reader, first chan<- device.Reading) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var reading device.Reading
		if json.Unmarshal(lines.Bytes(), &reading) != nil {
			continue // a line that was cut off when it was ended
		}
		ours := procfs.Below(os.Getpid())
		w.mu.Lock()
		w.seen.add(reading, ours)
		begun := w.seen.readings == 1
		w.mu.Unlock()
		if begun {
			first <- reading
		}
	}
}

// end ends the process and waits for it.
func (w *watch) end() error {
	if w == nil {
		return nil
	}
	err := w.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-w.ended:
		return err
	case <-time.After(patience):
		return errors.Join(err, fmt.Errorf("the watch of the GPUs does not end, %s after it was killed", patience))
	}
}

// processes are those that steps leave alone.
func (w *watch) processes() []int {
	if w == nil {
		return nil
	}
	select {
	case <-w.ended:
		return nil
	default:
		return []int{w.cmd.Process.Pid}
	}
}

// assigned judges what was seen of the GPUs so far.
func (c *check) assigned(r *Result) {
	r.Complete = true
	if c.watch == nil {
		r.Outcome, r.Notes = Skipped, []string{"no GPU is watched: " + c.report.Machine.NoGPUs}
		return
	}
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	r.Outcome, r.Why, r.Notes = c.watch.seen.judge(c.report.Machine.Assigned)
	if c.watch.wrong != nil { // what was touched since is not known
		r.Outcome = Failed
		r.Why = append(r.Why, "the watch of the GPUs ended early: "+c.watch.wrong.Error())
	}
}
