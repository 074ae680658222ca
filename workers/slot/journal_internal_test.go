package slot

import (
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestWhatIsWrittenDownHasRoomToGrow takes attempts whose lines are around as long as an entry: what one that is
// written down has cost later is, too. One that is not is lost with its last heartbeat, which tells the same.
func TestWhatIsWrittenDownHasRoomToGrow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := OpenJournal(dir, predictor.Pool, "h", "i", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("files of the journal: %q, %v", names, err)
	}
	written := 0
	for length := entryBytes - 1000; length < entryBytes; length += 7 {
		a := &Attempt{Task: wire.Task{ID: strings.Repeat("x", length)}, taken: time.Now()}
		entry := j.take(a, nil)
		if entry == noEntry {
			continue
		}
		written++
		a.kept.Running, a.kept.Lasted, a.kept.Lived = quantity.Money(math.MaxInt64), math.MaxInt64, math.MaxInt64
		a.kept.Waited = math.MaxInt64
		j.update(entry, a.kept)
		text, err := os.ReadFile(names[0])
		if err != nil {
			t.Fatal(err)
		}
		at := text[entry*entryBytes:]
		var kept Taken
		if err := json.Unmarshal(at[entryHead:entryHead+int(at[1])<<8+int(at[2])], &kept); err != nil ||
			kept.Running != math.MaxInt64 {
			t.Fatalf("the entry of a task with a name of %d bytes says %d picodollars, %v", length, kept.Running, err)
		}
	}
	if written == 0 {
		t.Error("no attempt was written down")
	}
	if err := j.Close(true); err != nil {
		t.Error(err)
	}
}
