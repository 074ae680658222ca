package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// checkpointPattern are the files below the state directory in which observers keep what they have taken in, each
	// version its own: see checkpointFile. Up to 2026-11-26 it was observer.checkpoint for all.
	checkpointPattern = "observer*.checkpoint"
	// partSuffix is what the name of such a file ends with in addition while it is written.
	partSuffix = ".part"
	// checkpointVersion is the version of that file, but for what others write into it, who have versions of their own.
	checkpointVersion = 1
	// checkpointEvery is how often it is written at most, and checkpointShare which part of the time that may take: of
	// 10,000 runs that go on it takes a second.
	checkpointEvery = 15 * time.Second
	checkpointShare = 30
	// maxCheckpoint bounds what is read, in bytes: a damaged length must not take all memory.
	maxCheckpoint = 1 << 30
)

// checkpointFile is the file of this version. An engine of an earlier version that comes back finds its own as it left
// it, and reads from the stream what came since: it cannot read this one, and the stream forgets.
var checkpointFile = fmt.Sprintf("observer-%d.%d.%d.checkpoint", checkpointVersion, ledger.CheckpointVersion,
	predictor.StateVersion)

// checkpointHeader begins the file: the version, the length of the rest, and its SHA-256.
const checkpointHeader = "spillway observer checkpoint %08d %016d %064x\n"

// errCheckpoint says that a file cannot be gone on with; the stream can.
var errCheckpoint = errors.New("it is damaged")

// position is how far an observer is.
type position struct {
	// Sequence is that of the last message of the loop's stream, Stored when the server stored it, and Sample the sequence
	// of the last sample in the stream of samples; 0 where there was none.
	Sequence uint64
	Stored   time.Time
	Sample   uint64
}

// knowledge is what an observer knew at a position; it does not change any more.
type knowledge struct {
	at      position
	ledger  *ledger.Checkpoint
	state   json.RawMessage // a predictor.State
	metrics telemetry.Followed
}

// checkpoint is what was read of a file.
type checkpoint struct {
	at      position
	ledger  *ledger.Ledger
	state   predictor.State
	metrics telemetry.Followed
}

// knows returns what the observer knows now; some is false when that is nothing that it has not known at a position.
func (o *observer) knows(but position) (now knowledge, some bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at == but {
		return knowledge{}, false, nil
	}
	state, err := json.Marshal(o.state)
	if err != nil {
		return knowledge{}, false, fmt.Errorf("write a checkpoint of the predictor: %w", err)
	}
	return knowledge{o.at, o.ledger.Checkpoint(), state, o.metrics.Follows()}, true, nil
}

// resume goes on with what another observer has taken in; it is called before anything else.
func (o *observer) resume(c *checkpoint) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ledger, o.state = c.ledger, c.state
	o.metrics.Resume(c.metrics)
	o.before.first = max(o.before.first, min(c.at.Sequence, o.before.last)+1)
	o.reach(c.at.Sequence)
	o.at = c.at
}

// encode writes the knowledge.
func (k *knowledge) encode(w io.Writer) error {
	if err := gob.NewEncoder(w).Encode(k.at); err != nil {
		return err
	}
	if err := k.ledger.Encode(w); err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(w).Encode([]byte(k.state)), gob.NewEncoder(w).Encode(k.metrics))
}

// write makes the knowledge durable in a file, whole or not at all.
func (k *knowledge) write(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	file, err := os.OpenFile(path+partSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var none [sha256.Size]byte
	written := &counted{}
	out := bufio.NewWriterSize(file, 1<<16)
	sum := sha256.New()
	_, err = fmt.Fprintf(out, checkpointHeader, checkpointVersion, 0, none)
	if err == nil {
		err = k.encode(io.MultiWriter(out, sum, written))
	}
	err = cmp.Or(err, out.Flush())
	if err == nil {
		_, err = file.WriteAt(fmt.Appendf(nil, checkpointHeader, checkpointVersion, written.bytes, sum.Sum(nil)), 0)
	}
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return safefile.SyncDirectory(filepath.Dir(path))
}

// counted counts what is written to it.
type counted struct{ bytes int64 }

// Write implements io.Writer.
func (c *counted) Write(data []byte) (int, error) {
	c.bytes += int64(len(data))
	return len(data), nil
}

// readCheckpoint reads a file; nil where there is none. Its errors say why a file is not gone on with.
func readCheckpoint(path string) (c *checkpoint, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s: %w", path, err)
		}
	}()
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	var version, length int64
	var want []byte
	header := make([]byte, len(fmt.Sprintf(checkpointHeader, 0, 0, [sha256.Size]byte{})))
	if _, err = io.ReadFull(file, header); err == nil {
		_, err = fmt.Sscanf(string(header), checkpointHeader, &version, &length, &want)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errCheckpoint, err)
	case version != checkpointVersion:
		return nil, fmt.Errorf("it has version %d, this engine reads %d", version, checkpointVersion)
	case length < 0 || length > maxCheckpoint:
		return nil, fmt.Errorf("%w: it says that it has %d bytes", errCheckpoint, length)
	}
	data, err := io.ReadAll(io.LimitReader(file, length+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); int64(len(data)) != length || !bytes.Equal(sum[:], want) {
		return nil, fmt.Errorf("%w: it has other bytes than were written", errCheckpoint)
	}
	return decodeCheckpoint(bytes.NewReader(data))
}

// decodeCheckpoint is the inverse of encode.
func decodeCheckpoint(r *bytes.Reader) (c *checkpoint, err error) {
	c = &checkpoint{}
	if err = gob.NewDecoder(r).Decode(&c.at); err != nil {
		return nil, err
	}
	if c.ledger, err = ledger.Restore(r); err != nil {
		return nil, err
	}
	var state []byte
	if err = errors.Join(gob.NewDecoder(r).Decode(&state), gob.NewDecoder(r).Decode(&c.metrics)); err != nil {
		return nil, err
	}
	if err = json.Unmarshal(state, &c.state); err != nil { // of a later version, for example
		return nil, err
	}
	return c, nil
}

// openCheckpoint returns what an observer can go on with on this stream, and nil where all that the stream has is to be
// taken in: of the files beside path, its own, the one that was written last of those that it can read. reason says why
// the newest is of no use where none is.
func openCheckpoint(ctx context.Context, js jetstream.JetStream, path string) (c *checkpoint, reason, err error) {
	for _, name := range checkpointsBeside(path) {
		c, why := readCheckpoint(name)
		if why != nil || c == nil {
			reason = cmp.Or(reason, why)
			continue
		}
		same, err := loop.Has(ctx, js, c.at.Sequence, c.at.Stored)
		if err != nil {
			return nil, nil, err
		}
		if same {
			return c, nil, nil
		}
		reason = cmp.Or(reason, fmt.Errorf("read %s: it is of another stream, or that has lost its last messages: message "+
			"%d, stored at %s, is not in it", name, c.at.Sequence, c.at.Stored.UTC().Format(time.RFC3339)))
	}
	return nil, reason, nil
}

// checkpointsBeside are the files of checkpoints in the directory of path, the one that was written last first.
func checkpointsBeside(path string) []string {
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), checkpointPattern)) // the pattern is no bad one
	written := make(map[string]time.Time, len(names))
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			written[name] = info.ModTime()
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(written[b].Compare(written[a]), strings.Compare(b, a))
	})
	return names
}

// forgetCheckpoints removes the files beside path but for the one of another version that was written last: that is of
// the engine that was here before this one. What an engine of any version was writing when it was killed goes too.
func forgetCheckpoints(path string) error {
	others := slices.DeleteFunc(checkpointsBeside(path), func(name string) bool { return name == path })
	parts, _ := filepath.Glob(filepath.Join(filepath.Dir(path), checkpointPattern+partSuffix)) // the pattern is no bad one
	var failed error
	for _, name := range slices.Concat(others[min(1, len(others)):], parts) {
		failed = errors.Join(failed, os.Remove(name))
	}
	return failed
}

// keepCheckpoints keeps what the observer has taken in until ctx ends, and then once more.
func (o *observer) keepCheckpoints(ctx context.Context, path string, last position) {
	next := time.Now().Add(checkpointEvery)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case now := <-ticker.C:
			if now.Before(next) {
				continue
			}
		}
		begun := time.Now()
		kept, err := o.keepCheckpoint(path, last)
		if err != nil {
			o.logger.WarnContext(ctx, "what was taken in could not be kept: the next start takes longer", "error", err)
		} else {
			last = kept
		}
		next = time.Now().Add(max(checkpointEvery, checkpointShare*time.Since(begun)))
	}
}

// keepCheckpoint keeps what the observer has taken in since it was at a position, and returns where it is. That
// other files cannot be removed is only logged: what is kept is not to be written again for it.
func (o *observer) keepCheckpoint(path string, last position) (position, error) {
	now, some, err := o.knows(last)
	if err != nil || !some {
		return last, err
	}
	if err := now.write(path); err != nil {
		return last, err
	}
	if err := forgetCheckpoints(path); err != nil {
		o.logger.Warn("old checkpoints cannot be removed and take room: remove them by hand", "error", err)
	}
	return now.at, nil
}
