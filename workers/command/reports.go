package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workers/termination"
)

const (
	// maxReport bounds one line of a report. Results are in the run's history, where Temporal takes 2 MiB at most.
	maxReport = 1 << 20
	// maxValues bounds all values of a result together, as JSON.
	maxValues = 1 << 20
	// maxTraining bounds what one line says of a split training.
	maxTraining = 256 << 10
	// maxWarnings is how many warnings are told; a program that writes its log to the wrong descriptor makes one a line.
	maxWarnings = 20
	// maxQuoted is how much of what a program wrote a warning repeats.
	maxQuoted = 200
)

// Listener is told what a program reports. Nil functions are not called. They are called one at a time, and reading
// waits for them.
type Listener struct {
	// Progress is told of each finished step, of how many, 0 where the program does not say, and with its metrics: NaN for
	// those that it wrote as NaN or Infinity, or as the text "NaN".
	Progress func(step, of int, metrics map[string]float64)
	// Checkpoint is told of each checkpoint that is stored: a tree with one entry, which Prepare restores.
	Checkpoint func(activities.Ref)
	// Training is told how a split training goes beside its plan; all of them are sound, and a later one replaces all
	// before it.
	Training func(predictor.Training)
	// Warn is told what could not be understood, and why, with the number of the line; at most 20 times.
	Warn func(text string)
}

// Reported is what a program has reported besides its progress.
type Reported struct {
	// Values are those of its result: JSON values, by name, with numbers as json.Number.
	Values map[string]any
	// OutOfMemory is the memory that it said it was refused.
	OutOfMemory termination.Memory
	// Final says that it would fail again, so that no other attempt is to be made.
	Final bool
	// Lines counts what was read.
	Lines int
}

// Follow reads a program's reports from r until its end, until reading fails, or until ctx ends where r has deadlines.
// Lines that cannot be understood become warnings and are passed over, whatever they hold: reports never fail an
// attempt.
//
// Checkpoints are stored while reading goes on, one at a time; a newer one takes the place of one that waits, so a
// program that makes them faster than they can be stored is not held up. The program must not write to a checkpoint
// after it has reported it, other than by renaming another file to its name; it may delete it when it has reported a
// newer one. What was changed meanwhile is not kept, with a warning. Follow returns when the last checkpoint is stored.
func (w *Workspace) Follow(ctx context.Context, r io.Reader, listener Listener) Reported {
	if pipe, ok := r.(interface{ SetReadDeadline(t time.Time) error }); ok {
		// it fails when the pipe is closed, which is as well
		stop := context.AfterFunc(ctx, func() { _ = pipe.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	f := follower{workspace: w, listener: listener, values: make(map[string]json.RawMessage)}
	var keeping sync.WaitGroup
	checkpoints := make(chan string, 1)
	keeping.Go(func() { f.keep(ctx, checkpoints) })
	if pipe, ok := r.(*os.File); ok {
		r = &lateReader{File: pipe, ctx: ctx, left: maxLate}
	}
	lines := bufio.NewReaderSize(r, 64<<10)
	for ctx.Err() == nil {
		line, tooLong, err := readLine(lines)
		if err == nil || len(line) > 0 || tooLong {
			f.reported.Lines++
			f.take(line, tooLong, checkpoints)
		}
		if err != nil {
			break
		}
	}
	close(checkpoints)
	keeping.Wait()
	return f.reported
}

// maxLate is how much is read after a deadline, which is the most that Linux lets a pipe hold.
const maxLate = 1 << 20

// lateReader reads a pipe. What is in it when its deadline has passed is read all the same, such as a result: this
// process may have had no time before.
type lateReader struct {
	*os.File
	ctx  context.Context //nolint:containedctx // of Follow, which makes it and ends before it
	left int
}

// Read reads what there is, and waits for more until the deadline.
func (r *lateReader) Read(p []byte) (int, error) {
	n, err := r.File.Read(p)
	if !errors.Is(err, os.ErrDeadlineExceeded) || r.ctx.Err() != nil || r.left == 0 {
		return n, err
	}
	raw, openErr := r.SyscallConn()
	if openErr != nil {
		return n, err
	}
	controlErr := raw.Control(func(fd uintptr) { // its end that is here never waits
		n, _ = syscall.Read(int(fd), p[:min(len(p), r.left)]) //nolint:gosec // a descriptor is small
	})
	if controlErr != nil || n <= 0 {
		return 0, err
	}
	r.left -= n
	return n, nil
}

// readLine reads one line without its end. Of a line that is too long the rest is read and dropped.
func readLine(r *bufio.Reader) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			line = append(line, part...)
			tooLong = len(line) > maxReport
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			if tooLong {
				line = nil
			}
			return bytes.TrimRight(line, "\r\n"), tooLong, err
		}
	}
}

// follower follows one program.
type follower struct {
	workspace *Workspace
	reported  Reported
	values    map[string]json.RawMessage // by which the size of the result is known

	telling  sync.Mutex // reading and keeping checkpoints tell at the same time
	listener Listener
	warnings int
	unknown  map[string]bool // keys that were warned of
	of       int             // how many steps there are by the program's last word; 0 while it has not said
	moved    bool            // that it says another number was warned of
}

// take understands one line.
func (f *follower) take(line []byte, tooLong bool, checkpoints chan string) {
	if tooLong {
		f.warnLine("it is longer than %s; keep large values in files", quantity.Bytes(maxReport))
		return
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	keys, err := object(line)
	if err != nil {
		if keys, err = lenient(line); err != nil {
			f.warnLine("%q is not a JSON object", quote(line))
			return
		}
		f.warnLine("%q has a NaN or Infinity, which JSON has not; it is taken for null", quote(line))
	}
	for _, with := range [...]string{"metrics", "of"} {
		if _, found := keys[with]; found && keys["progress"] == nil {
			f.warnLine("it has %s without progress, the number of the step", with)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		var err error
		switch key {
		case "progress":
			err = f.progress(keys[key], keys["of"], keys["metrics"])
		case "metrics", "of": // with progress
		case "checkpoint":
			err = f.checkpoint(keys[key], checkpoints)
		case "result":
			err = f.result(keys[key])
		case "out_of_memory":
			err = f.outOfMemory(keys[key])
		case "retry":
			err = f.retry(keys[key])
		case "training":
			err = f.training(keys[key])
		default:
			if f.unknown[key] || len(f.unknown) >= maxWarnings {
				continue // told once
			}
			if f.unknown == nil {
				f.unknown = map[string]bool{}
			}
			f.unknown[key] = true
			err = errors.New("no such key is known, and it is passed over; what can be reported is progress, of, " +
				"metrics, checkpoint, result, out_of_memory, retry and training")
		}
		if err != nil {
			f.warnLine("%q: %w", quote([]byte(key)), err)
		}
	}
}

// object decodes one JSON object, by key.
func object(line []byte) (map[string]json.RawMessage, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(line, &keys); err != nil {
		return nil, err
	}
	if keys == nil {
		return nil, errors.New("it is null")
	}
	return keys, nil
}

// notANumber is the text that stands for a metric that is not finite.
const notANumber = "NaN"

// notFinite are numbers as Python's json module writes them when a loss has diverged, and text, in which they mean
// nothing.
var notFinite = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b`)

// lenient decodes one object with numbers that JSON does not have, by key: null in their place, and in metrics the text
// that stands for them. The error says that it is none, or has no such number.
func lenient(line []byte) (map[string]json.RawMessage, error) {
	finite, replaced := withoutNaN(line, "null")
	if !replaced {
		return nil, errors.New("no number in it is not finite")
	}
	keys, err := object(finite)
	if _, found := keys["metrics"]; err != nil || !found {
		return keys, err
	}
	marked, _ := withoutNaN(line, `"`+notANumber+`"`)
	told, err := object(marked)
	if err == nil {
		keys["metrics"] = told["metrics"]
	}
	return keys, err
}

// withoutNaN returns the line with other text in place of numbers that JSON does not have, so that the step is not lost
// with its metric.
func withoutNaN(line []byte, with string) (finite []byte, replaced bool) {
	finite = notFinite.ReplaceAllFunc(line, func(found []byte) []byte {
		if found[0] == '"' {
			return found
		}
		replaced = true
		return []byte(with)
	})
	return finite, replaced
}

// maxSteps is more steps, rows or bytes than any program does, and the largest number up to which all are exact in
// JSON.
const maxSteps = 1 << 53

// counted decodes a whole number from least on.
func counted(value json.RawMessage, least float64) (number int, ok bool) {
	var decoded *float64
	if err := json.Unmarshal(value, &decoded); err != nil || decoded == nil || *decoded != math.Trunc(*decoded) ||
		*decoded < least || *decoded > maxSteps {
		return 0, false
	}
	return int(*decoded), true
}

func (f *follower) progress(step, of, told json.RawMessage) error {
	number, ok := counted(step, 0)
	if !ok {
		return fmt.Errorf("%s is not the number of a step; write how many are done, such as 3, and in \"of\" how many "+
			"there are", quote(step))
	}
	all := 0
	if of != nil {
		var err error
		if all, err = f.total(number, of); err != nil {
			f.warnLine("\"of\": %w", err) // the step is done all the same
		}
	}
	metrics := make(map[string]float64)
	var refused, absent []string
	if told != nil {
		var all map[string]any
		if err := json.Unmarshal(told, &all); err != nil {
			return fmt.Errorf("metrics: %s is not an object of numbers", quote(told))
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			switch value := all[name].(type) {
			case float64:
				metrics[name] = value
			case nil: // there is no value
			case string:
				if value != notANumber {
					refused = append(refused, name)
					continue
				}
				metrics[name], absent = math.NaN(), append(absent, name)
			default:
				refused = append(refused, name)
			}
		}
	}
	f.workspace.notFinite = absent[:min(len(absent), maxNotFinite)]
	f.telling.Lock()
	if f.listener.Progress != nil {
		f.listener.Progress(number, all, metrics)
	}
	f.telling.Unlock()
	if len(refused) > 0 {
		return fmt.Errorf("the metrics %s are not numbers", strings.Join(refused, ", "))
	}
	return nil
}

// maxNotFinite bounds how many metrics without a finite value are told.
const maxNotFinite = 64

// total is how many steps there are of which so many are done: 0, with what is wrong, for one that cannot be. One that
// changes counts, and that it does is told once.
func (f *follower) total(done int, value json.RawMessage) (int, error) {
	of, ok := counted(value, 1)
	switch {
	case string(value) == "null": // there is no value
		return 0, nil
	case !ok:
		return 0, fmt.Errorf("%s is not how many there are; write a whole number above 0, such as 5000, or leave it out",
			quote(value))
	case of < done:
		return 0, fmt.Errorf("%d are done, of %d: it is left out; write how many there are, with those that are done",
			done, of)
	}
	if f.of > 0 && of != f.of && !f.moved {
		f.moved = true
		f.warnLine("\"of\": it was %d and is %d; the newest counts, and the end is predicted the less surely", f.of, of)
	}
	f.of = of
	return of, nil
}

func (f *follower) result(value json.RawMessage) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(value, &values); err != nil || values == nil {
		return fmt.Errorf("%s is not an object", quote(value))
	}
	merged := maps.Clone(f.values)
	maps.Copy(merged, values)
	size := 0
	for name, value := range merged {
		size += len(name) + len(value)
	}
	if size > maxValues {
		return fmt.Errorf("the result would be larger than %s; leave it in a file that is an output",
			quantity.Bytes(maxValues))
	}
	f.values = merged
	if f.reported.Values == nil {
		f.reported.Values = make(map[string]any)
	}
	for name, value := range values {
		var decoded any
		exact := json.NewDecoder(bytes.NewReader(value))
		exact.UseNumber() // what is passed on must not be rounded
		if err := exact.Decode(&decoded); err != nil {
			return fmt.Errorf("%s: %w", quote([]byte(name)), err)
		}
		f.reported.Values[name] = decoded
	}
	return nil
}

func (f *follower) outOfMemory(value json.RawMessage) error {
	var kind termination.Memory
	if err := json.Unmarshal(value, &kind); err != nil || (kind != termination.Host && kind != termination.Device) {
		return fmt.Errorf("%s is neither %q nor %q", quote(value), termination.Host, termination.Device)
	}
	f.reported.OutOfMemory = kind
	return nil
}

func (f *follower) retry(value json.RawMessage) error {
	var retry *bool
	if err := json.Unmarshal(value, &retry); err != nil || retry == nil {
		return fmt.Errorf("%s is neither true nor false", quote(value))
	}
	f.reported.Final = !*retry
	return nil
}

func (f *follower) training(value json.RawMessage) error {
	if len(value) > maxTraining {
		return fmt.Errorf("it is longer than %s; leave alternatives out", quantity.Bytes(maxTraining))
	}
	var training *predictor.Training
	if err := json.Unmarshal(value, &training); err != nil {
		return fmt.Errorf("%s does not tell how a training goes: %w", quote(value), err)
	}
	if training == nil {
		return errors.New("it is null")
	}
	if err := training.Validate(); err != nil {
		return err
	}
	f.telling.Lock()
	defer f.telling.Unlock()
	if f.listener.Training != nil {
		f.listener.Training(*training)
	}
	return nil
}

// checkpoint hands a path to keep; it takes the place of one that waits.
func (f *follower) checkpoint(value json.RawMessage, checkpoints chan string) error {
	var name string
	if err := json.Unmarshal(value, &name); err != nil || name == "" {
		return fmt.Errorf("%s is not a path", quote(value))
	}
	resolved, err := f.workspace.resolve(name)
	if err != nil {
		return err
	}
	select { // only this goroutine sends, so there is room when the waiting one is taken out
	case <-checkpoints:
	default:
	}
	checkpoints <- resolved
	return nil
}

// keep stores checkpoints until there are no more.
func (f *follower) keep(ctx context.Context, checkpoints <-chan string) {
	for file := range checkpoints {
		ref, err := f.workspace.keepCheckpoint(ctx, file)
		f.telling.Lock()
		switch {
		case err != nil:
			f.warn(fmt.Errorf("the checkpoint %s is not kept: %w", filepath.Base(file), err).Error())
		case f.listener.Checkpoint != nil:
			f.listener.Checkpoint(ref)
		}
		f.telling.Unlock()
	}
}

// keepCheckpoint stores what resolve has found. It is opened below the directory that it must not leave: links on the
// way may have changed.
func (w *Workspace) keepCheckpoint(ctx context.Context, file string) (activities.Ref, error) {
	top, below, err := w.topOf(file)
	if err != nil {
		return activities.Ref{}, err
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		return activities.Ref{}, err
	}
	defer root.Close() //nolint:errcheck // it was only read
	dir, err := root.OpenRoot(filepath.Dir(below))
	if err != nil {
		return activities.Ref{}, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	return tree.PackRoot(ctx, w.store, dir, tree.Options{Only: []string{filepath.Base(below)}, MaxBytes: tree.Unlimited})
}

// warnLine warns of the line that was read last.
func (f *follower) warnLine(format string, arguments ...any) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.warn(fmt.Errorf("report line %d: %w", f.reported.Lines, fmt.Errorf(format, arguments...)).Error())
}

// warn tells a warning, unless there were too many. The caller holds telling.
func (f *follower) warn(text string) {
	f.warnings++
	if f.warnings > maxWarnings || f.listener.Warn == nil {
		return
	}
	if f.warnings == maxWarnings {
		text += " (further warnings are not shown)"
	}
	f.listener.Warn(text)
}

// quote shortens what a program wrote.
func quote(data []byte) string {
	if len(data) > maxQuoted {
		return strings.ToValidUTF8(string(data[:maxQuoted]), "") + "..."
	}
	return strings.ToValidUTF8(string(data), "�")
}

// resolve returns the file on the host that a program names: relative to where it starts, or absolute. Links are
// followed; what is not in the workspace, or in the directory of a program in place, is refused.
func (w *Workspace) resolve(name string) (string, error) {
	file := filepath.FromSlash(name)
	if w.engine != "" && filepath.IsAbs(file) { // a path of the container
		if below, found := strings.CutPrefix(file, containerRoot+"/"); found {
			file = filepath.Join(w.dir, below)
		} else if below, found := strings.CutPrefix(file, containerWork+"/"); found {
			file = filepath.Join(w.work, below)
		}
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(w.Directory(), file)
	}
	resolved, err := filepath.EvalSymlinks(file)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is nothing at %s", name)
	}
	if err != nil {
		return "", err
	}
	if _, _, err := w.topOf(resolved); errors.Is(err, errOutside) {
		return "", fmt.Errorf("%s %w", name, err)
	} else if err != nil {
		return "", err
	}
	return resolved, nil
}

// errOutside says that a file is neither in the workspace nor in the directory of a program in place.
var errOutside = errors.New("is not below the working directory")

// topOf returns the directory of the program that has file, a path without links, and where in it that is.
func (w *Workspace) topOf(file string) (top, below string, err error) {
	for _, dir := range []string{w.work, w.home(), w.temporary()} {
		if top, err = filepath.EvalSymlinks(dir); err != nil {
			return "", "", err
		}
		if below, err = filepath.Rel(top, file); err == nil && filepath.IsLocal(below) && below != "." {
			return top, below, nil
		}
	}
	return "", "", errOutside
}
