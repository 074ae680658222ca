package wire

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// LogOrigin says where a line of an attempt's output comes from.
type LogOrigin string

// The origins of lines.
const (
	// LogOut and LogErr are the program's standard output and standard error.
	LogOut LogOrigin = "out"
	LogErr LogOrigin = "err"
	// LogNote is what the engine says about the output, such as how many lines were left out.
	LogNote LogOrigin = "note"
)

// LogSource names the attempt that printed something, and where it ran.
type LogSource struct {
	Run   string `json:"run"`
	Stage string `json:"stage"`
	Task  string `json:"task"`
	// Attempt counts from 1.
	Attempt int             `json:"attempt"`
	Venue   predictor.Venue `json:"venue"`
	// Host is the agent's name of the host; empty at a function.
	Host string `json:"host,omitempty"`
}

// LogLine is one line of output without its end. The text is valid UTF-8 and otherwise as it was printed, control
// characters included: whoever shows it on a terminal removes them.
type LogLine struct {
	// At is when the line was read, by the clock of the host. It never goes back within an attempt.
	At time.Time `json:"at"`
	// Origin is empty in no message.
	Origin LogOrigin `json:"origin"`
	Text   string    `json:"text"`
	// Cut says that the line was longer: the rest is lost.
	Cut bool `json:"cut,omitempty"`
	// Redrawn says that this is one state of a line that the program draws again and again, as progress bars do; others
	// are left out.
	Redrawn bool `json:"redrawn,omitempty"`
}

// Logs is one message of LogStream: lines of one attempt in the order in which they were printed.
type Logs struct {
	Version int       `json:"v"`
	Source  LogSource `json:"source"`
	Lines   []LogLine `json:"lines"`
}

// DecodeLogs reads a message of LogStream. It wraps ErrVersion for a version that it does not know.
func DecodeLogs(data []byte) (Logs, error) {
	var message Logs
	err := json.Unmarshal(data, &message)
	// A version of the future may have another shape, so its number says more than what does not fit.
	if message.Version != Version && (err == nil || message.Version != 0) {
		return Logs{}, fmt.Errorf("decode logs: %w: %d, this build reads %d", ErrVersion, message.Version, Version)
	}
	if err != nil {
		return Logs{}, fmt.Errorf("decode logs: %w", err)
	}
	return message, nil
}
