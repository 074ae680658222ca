package slot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// answerGrace is how long an entry is kept after its attempt, until Temporal's worker has surely delivered the answer.
	answerGrace = time.Second
	// entryBytes is the room of an entry: one page, so that the kernel writes it whole or not at all.
	entryBytes = 4096
	// givers is how many attempts of a former self are given back at a time. Each try takes up to giveTimeout, and after
	// givePause comes the next, until giveFor has passed: by then the server has given the task to another anyhow.
	givers      = 8
	giveTimeout = 5 * time.Second
	givePause   = 200 * time.Millisecond
	giveFor     = time.Minute
)

// The first byte of an entry says how its attempt stands: free, in hand, or with a durable Record. Two bytes of length
// and the text follow.
const (
	entryFree     byte = 0
	entryInHand   byte = 'h'
	entryRecorded byte = 'r'
	entryHead          = 3
)

// lostMessage says what became of an attempt of a former self, waitedMessage what did of one that it had not begun.
const (
	lostMessage   = "the process that ran the attempt ended without a word; the task is taken again"
	waitedMessage = "the process in which the task waited to begin ended without a word; the task is taken again"
)

// Journal keeps on disk which attempts a supervisor has in hand, so that whoever comes after a crash can give them back
// at once: without it, their tasks wait until Temporal misses their heartbeat. Nothing is synced: after a loss of
// power, the heartbeat is what helps. A nil Journal keeps nothing. Its methods may be called concurrently.
//
// It is one file of entries that are written in place, because making and removing a file for each attempt takes a
// hundred times as long.
type Journal struct {
	// Proofs is told with what each attempt shows that it was given to this host; it is set before the first. Nil is not
	// told.
	Proofs *Proofs

	venue  predictor.Venue
	host   string
	logger *slog.Logger
	left   []string // files of former selves
	file   *os.File

	mu      sync.Mutex
	entries int           // in the file
	free    []int         // of those
	ended   []ended       // in the order in which their attempts did
	taken   map[int]Taken // those in hand, by entry
	changes int           // of taken
}

// ended is the entry of an attempt that has ended, and when it may go.
type ended struct {
	entry int
	due   time.Time
}

// Taken is an attempt that a supervisor has in hand, as an entry has it: all that somebody else needs to give it back.
type Taken struct {
	Version     int       `json:"v"`
	Token       []byte    `json:"token"` // Temporal's name of the attempt
	Task        wire.Task `json:"task"`
	Attempt     int       `json:"attempt"`
	PoolOnly    bool      `json:"pool_only,omitempty"`
	ScheduledAt time.Time `json:"scheduled_at"`
	// Queue is how long the task had waited when it was taken.
	Queue time.Duration `json:"queue_ns"`
	// Spent is what earlier attempts cost, Running what this one is taken to have cost if it is lost.
	Spent   quantity.Money `json:"spent_picodollars,omitempty"`
	Running quantity.Money `json:"running_picodollars,omitempty"`
	// Lasted is for how long that is, where the attempt ends with the process; 0 where it does not, or nobody tells.
	Lasted time.Duration `json:"lasted_ns,omitempty"`
	// Lived is for how long it had been in hand when that was written last, at each heartbeat: whoever gives it back may
	// come days later. 0 in an entry of an earlier version.
	Lived time.Duration `json:"lived_ns,omitempty"`
	// Waits says that the user's code has not begun, as while the attempt waits for room; Waited is for how long it had
	// been in hand when it did. An entry of an earlier version tells neither.
	Waits  bool          `json:"waits,omitempty"`
	Waited time.Duration `json:"waited_ns,omitempty"`
}

// TakenAt is about when the attempt came in hand, by the clock of whoever scheduled it.
func (l Taken) TakenAt() time.Time { return l.ScheduledAt.Add(l.Queue) }

// waited is for how much of the time in hand the user's code did not run.
func (l Taken) waited() time.Duration {
	if l.Waits {
		return max(l.Lived, 0)
	}
	return max(min(l.Waited, l.Lived), 0)
}

// message says what became of the attempt if it is lost, and for how long it is billed.
func (l Taken) message() string {
	if l.Waits {
		return waitedMessage
	}
	if l.Lasted == 0 {
		return lostMessage
	}
	return fmt.Sprintf("%s; it ended with that process and is billed for %s, until the first sign of life that it missed",
		lostMessage, l.Lasted.Round(time.Millisecond))
}

// OpenJournal opens the journal of the supervisor of venue on host in dir, which no other process uses; instance names
// this start of it.
func OpenJournal(dir string, venue predictor.Venue, host, instance string, logger *slog.Logger) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the journal of attempts: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the journal of attempts: %w", err)
	}
	j := &Journal{venue: venue, host: host, logger: logger}
	for _, file := range files {
		j.left = append(j.left, filepath.Join(dir, file.Name()))
	}
	j.file, err = os.OpenFile(filepath.Join(dir, instance), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the journal of attempts: %w", err)
	}
	return j, nil
}

// noEntry is that of an attempt that is not written down.
const noEntry = -1

// proofs are those of the attempts in hand; nil where nobody keeps any.
func (j *Journal) proofs() *Proofs {
	if j == nil {
		return nil
	}
	return j.Proofs
}

// take writes down an attempt that is about to begin and returns its entry. One that cannot be written down goes on
// without.
func (j *Journal) take(a *Attempt, token []byte) (entry int) {
	if j == nil {
		return noEntry
	}
	a.kept = Taken{
		Version: wire.Version, Token: token, Task: a.Task, Attempt: a.Number, PoolOnly: a.PoolOnly,
		ScheduledAt: a.ScheduledAt, Queue: a.queued,
		Spent: a.state.Spent, Lived: max(time.Since(a.taken), 1), Waits: true,
	}
	grown := a.kept // to the longest that update can write
	grown.Running, grown.Lasted, grown.Lived, grown.Waited = math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64
	longest, err := json.Marshal(grown)
	if err != nil || entryHead+len(longest) > entryBytes {
		j.logger.Debug("an attempt is not written down", "task", a.Task.ID, "bytes", len(longest), "error", err)
		return noEntry
	}
	text, err := json.Marshal(a.kept)
	if err != nil {
		j.logger.Debug("an attempt is not written down", "task", a.Task.ID, "error", err)
		return noEntry
	}
	head := []byte{entryInHand, byte(len(text) >> 8), byte(len(text))}
	entry = j.reserve(time.Now())
	j.note(entry, &a.kept)
	if _, err := j.file.WriteAt(append(head, text...), int64(entry)*entryBytes); err != nil {
		j.logger.Debug("an attempt is not written down", "task", a.Task.ID, "error", err)
	}
	return entry
}

// update writes down what an attempt in hand has cost so far, and for how long it goes on; how it stands stays as it
// is.
func (j *Journal) update(entry int, kept Taken) {
	if j == nil || entry == noEntry {
		return
	}
	j.renote(entry, kept)
	text, err := json.Marshal(kept)
	if err == nil { // take has seen to the room
		size := []byte{byte(len(text) >> 8), byte(len(text))}
		_, err = j.file.WriteAt(append(size, text...), int64(entry)*entryBytes+1)
	}
	if err != nil {
		j.logger.Debug("an attempt that goes on is written down as it was", "task", kept.Task.ID, "error", err)
	}
}

// reserve returns an entry that is free at now.
func (j *Journal) reserve(now time.Time) (entry int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.ended) > 0 && now.After(j.ended[0].due) {
		j.mark(j.ended[0].entry, entryFree)
		j.free = append(j.free, j.ended[0].entry)
		j.ended = j.ended[1:]
	}
	if n := len(j.free); n > 0 {
		entry, j.free = j.free[n-1], j.free[:n-1]
		return entry
	}
	j.entries++
	return j.entries - 1
}

// InHand returns the attempts in hand, in the order of their tasks, and how often it has changed which those are, and
// of which the user's code has begun.
func (j *Journal) InHand() (taken []Taken, changes int) {
	if j == nil {
		return nil, 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	taken = slices.SortedFunc(maps.Values(j.taken), func(a, b Taken) int {
		return cmp.Or(cmp.Compare(a.Task.Run, b.Task.Run), cmp.Compare(a.Task.ID, b.Task.ID))
	})
	return taken, j.changes
}

// renote notes how an attempt in hand stands; it is a change where its user's code begins, or waits again.
func (j *Journal) renote(entry int, kept Taken) {
	j.mu.Lock()
	defer j.mu.Unlock()
	before, is := j.taken[entry]
	if !is {
		return
	}
	if before.Waits != kept.Waits {
		j.changes++
	}
	j.taken[entry] = kept
}

// note notes that an attempt is in hand; nil that it is no more.
func (j *Journal) note(entry int, kept *Taken) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changes++
	if kept == nil {
		delete(j.taken, entry)
		return
	}
	if j.taken == nil {
		j.taken = make(map[int]Taken)
	}
	j.taken[entry] = *kept
}

// mark changes how the attempt of an entry stands.
func (j *Journal) mark(entry int, standing byte) {
	if _, err := j.file.WriteAt([]byte{standing}, int64(entry)*entryBytes); err != nil {
		j.logger.Debug("an entry of the journal stays as it was", "entry", entry, "error", err)
	}
}

// recorded notes that the Record of an attempt is durable.
func (j *Journal) recorded(entry int) {
	if j != nil && entry != noEntry {
		j.mark(entry, entryRecorded)
	}
}

// leave notes that an attempt has ended: its entry goes when its answer has surely been delivered.
func (j *Journal) leave(entry int) {
	if j == nil || entry == noEntry {
		return
	}
	j.note(entry, nil)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = append(j.ended, ended{entry: entry, due: time.Now().Add(answerGrace)})
}

// Close removes the file once all attempts have ended and their answers were delivered. Where some did not return,
// allEnded is false: the file stays, so that the next self gives them back.
func (j *Journal) Close(allEnded bool) error {
	if j == nil {
		return nil
	}
	if !allEnded {
		return j.file.Close()
	}
	err := errors.Join(j.file.Close(), os.Remove(j.file.Name()))
	_ = os.Remove(filepath.Dir(j.file.Name())) // if it is empty
	return err
}

// GiveBack fails, at Temporal, the attempts that former selves had in hand when they ended, and makes their Records
// durable. What the server does not know any more is done. It returns when all are given back, when ctx ends or after a
// minute; what is left then is tried again by the next self.
func (j *Journal) GiveBack(ctx context.Context, c client.Client, recorder activities.Recorder) {
	if j == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, giveFor)
	defer cancel()
	for _, path := range j.left {
		if err := j.giveBackAll(ctx, c, recorder, path); err != nil {
			j.logger.WarnContext(ctx, "attempts of a former self are not all given back; their tasks wait until their "+
				"heartbeats are missed", "error", err)
		}
	}
}

// giveBackAll gives back what one former self had in hand, and removes its file once nothing is left.
func (j *Journal) giveBackAll(ctx context.Context, c client.Client, recorder activities.Recorder, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var left []inHand
	for entry := range slices.Chunk(text, entryBytes) {
		if entry[0] != entryInHand && entry[0] != entryRecorded {
			continue
		}
		kept, err := decodeEntry(entry)
		if err != nil {
			j.logger.DebugContext(ctx, "an entry of the journal cannot be read", "error", err)
			continue
		}
		left = append(left, inHand{kept, entry[0] == entryRecorded})
	}
	for _, one := range left {
		j.Proofs.take(one.Task.Run, one.Task.ID, one.Attempt, one.Token)
	}
	lost{j.venue, j.host, c, recorder, j.logger}.giveBack(ctx, left)
	for _, one := range left {
		j.Proofs.forget(one.Task.Run, one.Task.ID, one.Attempt)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.logger.InfoContext(ctx, "attempts of a former self are given back", "attempts", len(left))
	return os.Remove(path)
}

// GiveBack fails, at Temporal, the attempts that a supervisor of venue on host had in hand that is lost, and makes
// their Records durable: what the supervisor itself does when it starts again, for one that may never. What others
// have given back before is done. It returns when all are given back, or when ctx ends.
func GiveBack(
	ctx context.Context, c client.Client, recorder activities.Recorder, venue predictor.Venue, host string, taken []Taken,
	logger *slog.Logger,
) {
	left := make([]inHand, len(taken))
	for i, one := range taken {
		one.Lived = max(one.Lived, time.Since(one.TakenAt()))
		left[i] = inHand{Taken: one}
	}
	lost{venue, host, c, recorder, logger}.giveBack(ctx, left)
}

// lost is a supervisor that has ended without a word.
type lost struct {
	venue    predictor.Venue
	host     string
	client   client.Client
	recorder activities.Recorder
	logger   *slog.Logger
}

// inHand is an attempt that a lost supervisor had in hand; recorded says that its Record is durable.
type inHand struct {
	Taken

	recorded bool
}

// giveBack gives attempts back, some at a time, trying until ctx ends.
func (l lost) giveBack(ctx context.Context, all []inHand) {
	var giving sync.WaitGroup
	next := make(chan inHand)
	for range min(givers, len(all)) {
		giving.Go(func() {
			for one := range next {
				l.giveBackOne(ctx, one)
			}
		})
	}
	for _, one := range all {
		next <- one // whose try ends at once when ctx has ended
	}
	close(next)
	giving.Wait()
}

func (l lost) giveBackOne(ctx context.Context, one inHand) {
	for ctx.Err() == nil {
		var err error
		if !one.recorded {
			err = l.record(ctx, one.Taken)
			one.recorded = err == nil
		}
		if one.recorded {
			err = fail(ctx, l.client, one.Taken)
		}
		if err == nil {
			return
		}
		l.logger.DebugContext(ctx, "give an attempt back again", "task", one.Task.ID, "error", err)
		wait.For(ctx, givePause)
	}
}

// decodeEntry reads an entry that is not free. One that its process was killed over is an error.
func decodeEntry(entry []byte) (kept Taken, err error) {
	if len(entry) < entryHead {
		return Taken{}, errors.New("it is cut short")
	}
	length := int(entry[1])<<8 | int(entry[2])
	if entryHead+length > len(entry) {
		return Taken{}, fmt.Errorf("%d bytes of %d are there", len(entry)-entryHead, length)
	}
	if err := json.Unmarshal(entry[entryHead:entryHead+length], &kept); err != nil {
		return Taken{}, err
	}
	if kept.Version != wire.Version || kept.Task.ID == "" || len(kept.Token) == 0 {
		return Taken{}, fmt.Errorf("it is of version %d, this build reads %d", kept.Version, wire.Version)
	}
	return kept, nil
}

// record makes the Record of a lost attempt durable: what it did not run, it waited. Where the attempt has one already,
// the first one counts.
func (l lost) record(ctx context.Context, kept Taken) error {
	ctx, cancel := context.WithTimeout(ctx, giveTimeout)
	defer cancel()
	return l.recorder.Record(ctx, kept.Lost(l.venue, l.host, time.Now()))
}

// Lost is the Record of the attempt, of venue on host, that is known at now to be lost.
func (l Taken) Lost(venue predictor.Venue, host string, now time.Time) predictor.Record {
	return predictor.Record{
		Run: l.Task.Run, Pipeline: l.Task.Pipeline, Stage: l.Task.Stage, Task: l.Task.ID, Attempt: l.Attempt, Venue: venue,
		Host:     host,
		PoolOnly: l.PoolOnly, ScheduledAt: l.ScheduledAt, Queue: l.Queue + l.waited(), At: now,
		Usage:   quantity.Usage{Wall: l.Lived - l.waited()},
		Outcome: predictor.Lost, Cause: predictor.CauseHostLost, Error: l.message(), Cost: l.Running,
	}
}

// fail tells Temporal that the attempt is lost.
func fail(ctx context.Context, c client.Client, kept Taken) error {
	ctx, cancel := context.WithTimeout(ctx, giveTimeout)
	defer cancel()
	before := wire.Heartbeat{Spent: kept.Spent}
	_, lost := Conclude(kept.Task, kept.Attempt, before,
		Ending{Outcome: predictor.Lost, Message: kept.message(), Cost: kept.Running})
	err := c.CompleteActivity(ctx, kept.Token, nil, lost)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return nil
	}
	return err
}
