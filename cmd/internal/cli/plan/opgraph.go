package plan

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/workers/graph"
)

const (
	// formatAuto is the value of --format that goes by what the file holds.
	formatAuto = "auto"
	// formatModel says that the graph was made by looking into a model.
	formatModel graph.Format = "model"
)

// mostGraphText bounds a recorded graph in bytes: those of ten thousand operations have a few MiB.
const mostGraphText = 256 << 20

// ModelReference is FILE.py:FUNCTION.
var ModelReference = regexp.MustCompile(`\.py:[A-Za-z_][A-Za-z0-9_]*$`)

// formats are the values of --format.
func formats() []string {
	names := []string{formatAuto}
	for _, format := range graph.Formats() {
		names = append(names, string(format))
	}
	return names
}

// readOpGraph reads a recorded graph. batch is the number of samples of a batch, 0 for what the file says.
func readOpGraph(name, format string, batch int) (graph.Recorded, error) {
	text, err := flag.ReadFile(name, mostGraphText)
	if err != nil {
		return graph.Recorded{}, &fault.UsageError{
			Problem: fmt.Sprintf("read %s: %v", name, fault.WithoutPath(err)),
			Hint:    "give the file of a recorded graph, or MODEL.py:FUNCTION",
		}
	}
	known := graph.Format(format)
	if format == formatAuto {
		if known, err = formatOf(name, text); err != nil {
			return graph.Recorded{}, err
		}
	}
	found, err := graph.ReadAs(text, known, batch)
	if err != nil {
		return graph.Recorded{}, &fault.UsageError{
			Problem: fmt.Sprintf("%s as %s: %v", name, known, err),
			Hint:    "correct the file, or name its format with --format",
		}
	}
	if found.Graph.Name == "" {
		found.Graph.Name = filepath.Base(name)
	}
	return found, nil
}

// formatOf recognises a format, and says where JSON stops being it.
func formatOf(name string, text []byte) (graph.Format, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		if err := flag.CheckJSON(name, text); err != nil {
			return "", err
		}
	}
	format, err := graph.FormatOf(text)
	if err != nil {
		return "", &fault.UsageError{
			Problem: fmt.Sprintf("%s is of no known format: %v", name, err),
			Hint:    "formats are those of spillway, dnn-partitioning, pipedream, dapple and piper; --format names one",
		}
	}
	return format, nil
}
