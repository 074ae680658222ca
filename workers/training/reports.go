package training

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// trainingEvery is the least time between two lines that tell how the plan turns out: each holds all of it.
const trainingEvery = time.Second

// mostTrainings bounds the list of earlier trainings, in bytes.
const mostTrainings = 16 << 20

// Reports returns an observer that tells a command stage's progress, checkpoints and training as lines of JSON, in the
// form that [wire.ReportEnvironment] describes. Numbers that are not finite are left out. What cannot be written is
// dropped: a report never fails a training.
func Reports(w io.Writer) Observer {
	var told time.Time
	write := func(line any) {
		text, err := json.Marshal(line)
		if err != nil {
			return // a plan with numbers that JSON has not
		}
		_, _ = w.Write(append(text, '\n'))
	}
	training := func(t predictor.Training) {
		write(map[string]predictor.Training{"training": t})
		told = time.Now()
	}
	return Observer{
		Planned: training,
		Progressed: func(p Progress) {
			finite := metrics(p)
			for name, value := range finite {
				if math.IsNaN(value) || math.IsInf(value, 0) {
					delete(finite, name)
				}
			}
			write(progressLine{min(p.Training.Steps, math.MaxInt32), finite})
			if p.Training.Steps == p.Training.TotalSteps || time.Since(told) >= trainingEvery {
				training(p.Training)
			}
		},
		Checkpointed: func(directory string, _ int64) { write(map[string]string{"checkpoint": directory}) },
	}
}

// ReportFinal tells that another attempt would fail as this one does.
func ReportFinal(w io.Writer) error {
	if _, err := io.WriteString(w, `{"retry": false}`+"\n"); err != nil {
		return fmt.Errorf("report that no other attempt helps: %w", err)
	}
	return nil
}

// progressLine says that a step is done.
type progressLine struct {
	Progress int64              `json:"progress"`
	Metrics  map[string]float64 `json:"metrics"`
}

// FromCommand returns what a command stage gives its program: the checkpoint of an earlier attempt, how earlier
// trainings went, and where reports go, which the caller closes. Outside a command stage nothing is resumed and reports
// are discarded. lookup finds environment variables.
func FromCommand(
	lookup func(name string) (value string, set bool),
) (resume string, past []predictor.Training, report io.WriteCloser, err error) {
	resume, _ = lookup(wire.ResumeEnvironment)
	if text, set := lookup(wire.TrainingsEnvironment); set && text != "" {
		if past, err = parseTrainings(text); err != nil {
			return "", nil, nil, fmt.Errorf("read %s: %w", wire.TrainingsEnvironment, err)
		}
	}
	path, set := lookup(wire.ReportEnvironment)
	if !set || path == "" {
		return resume, past, discard{io.Discard}, nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return "", nil, nil, fmt.Errorf("open the pipe of reports that %s names: %w", wire.ReportEnvironment, err)
	}
	return resume, past, file, nil
}

// TimeToLoss is what the environment of a command says of how long attempts like it go on in the mean before they are
// lost with their host; 0 where it says nothing.
func TimeToLoss(lookup func(name string) (value string, set bool)) (time.Duration, error) {
	text, _ := lookup(wire.TimeToLossEnvironment)
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= time.Duration(math.MaxInt64).Seconds()/2) {
		return 0, fmt.Errorf("read %s: %.40q is no number of seconds above 0; leave it out where it is not known",
			wire.TimeToLossEnvironment, text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// parseTrainings reads the list of earlier trainings.
func parseTrainings(text string) ([]predictor.Training, error) {
	if len(text) > mostTrainings {
		return nil, fmt.Errorf("it has %d bytes; want at most %d", len(text), mostTrainings)
	}
	var past []predictor.Training
	if err := json.Unmarshal([]byte(text), &past); err != nil {
		return nil, errors.Join(errors.New("it is no list of trainings"), err)
	}
	return past, nil
}

// discard is a report that nobody reads.
type discard struct{ io.Writer }

// Close does nothing.
func (discard) Close() error { return nil }
