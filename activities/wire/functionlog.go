package wire

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/activities"
)

// BatchMark is the line that a function logs before it begins the attempt of this number, from 1, of so many that came
// with its invoke: it tells which one it was at when its environment ended, and what each has printed.
func BatchMark(number, of int, task string) string {
	return fmt.Sprintf("spillway: begin of %d of %d tasks: %s", number, of, task)
}

// FunctionNote is what the runner of a command at a function tells while the command runs. A function has no channel
// but its log, of which whoever invoked it gets the end, also when the function was killed: so a checkpoint outlives
// it.
type FunctionNote struct {
	// Checkpoint and Progress are the newest.
	Checkpoint *activities.Ref `json:"checkpoint,omitempty"`
	Progress   *Progress       `json:"progress,omitempty"`
}

// noteMark begins the line of a note.
const noteMark = "spillway-note: "

// maxNote bounds the line of a note, so that the end of a log, of 4 KiB, holds one besides what was printed after it.
const maxNote = 1 << 10

// Line is the note as a line of a log. Metrics that are too long for one are left out.
func (n FunctionNote) Line() string {
	encoded, err := json.Marshal(n)
	if n.Progress != nil && (err != nil || len(encoded) > maxNote) {
		bare := *n.Progress
		bare.Metrics = nil
		n.Progress = &bare
		encoded, err = json.Marshal(n)
	}
	if err != nil {
		return "" // there is nothing in it that cannot be encoded
	}
	return noteMark + string(encoded) + "\n"
}

// CutFunctionNotes takes the notes out of a log. What is newest of them is returned, and the rest of the log.
func CutFunctionNotes(log string) (note FunctionNote, rest string) {
	var kept strings.Builder
	for line := range strings.Lines(log) {
		encoded, isNote := strings.CutPrefix(line, noteMark)
		var one FunctionNote
		if !isNote || json.Unmarshal([]byte(encoded), &one) != nil {
			kept.WriteString(line)
			continue
		}
		note.Checkpoint, note.Progress = cmp.Or(one.Checkpoint, note.Checkpoint), cmp.Or(one.Progress, note.Progress)
	}
	return note, kept.String()
}
