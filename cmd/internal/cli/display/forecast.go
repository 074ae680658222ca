package display

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Expected returns what is expected of a run, and one line of warning where it will probably miss its goal; nothing
// while nothing is expected.
func Expected(run ledger.RunView) []string {
	told := run.Predicted
	if !known(told.FinishSeconds) {
		return nil
	}
	line := "expected to end after " + between(told.FinishSeconds, seconds)
	if known(told.Cost) {
		line += " for " + between(told.Cost, money)
	}
	if basis := basisOf(told); basis != "" {
		line += "; " + basis
	}
	lines := []string{line}
	if warning := warningOf(run, told); warning != "" {
		lines = append(lines, warning)
	}
	return lines
}

// basisOf says what a forecast rests on; empty where that is not known.
func basisOf(told ledger.RunPrediction) string {
	switch {
	case told.Basis != "":
		return "rests on " + Clean(told.Basis)
	case told.Runs > 0: // an older engine told it
		return "rests on " + Count(told.Runs, "earlier run")
	}
	return ""
}

// warned is how probable it is that a goal is missed of which people are warned, or more: the middle of what is
// expected misses it.
const warned = 0.5

// warningOf says that a run will probably miss its goal, and what can be done; empty where it will probably not.
func warningOf(run ledger.RunView, told ledger.RunPrediction) string {
	var misses, flags []string
	if told.Late > warned && run.Goal.Deadline > 0 {
		misses = append(misses, fmt.Sprintf("its deadline of %s (%.0f%%)", duration(run.Goal.Deadline), 100*told.Late))
		flags = append(flags, "--deadline "+duration(enough(told.FinishSeconds.High)))
	}
	if told.Dear > warned && run.Goal.Budget > 0 {
		misses = append(misses, fmt.Sprintf("its budget of %s (%.0f%%)", run.Goal.Budget, 100*told.Dear))
		flags = append(flags, "--budget "+enoughDollars(told.Cost.High))
	}
	if len(misses) == 0 {
		return ""
	}
	return fmt.Sprintf("warning: it will probably miss %s; `spillway goal %s` shows what else could be had, and %s there "+
		"gives enough", strings.Join(misses, " and "), Clean(run.Run), strings.Join(flags, " "))
}

// enough is so many seconds, rounded up to a time that people would give.
func enough(s float64) time.Duration {
	step := 1.0
	switch {
	case s >= 3600:
		step = 300
	case s >= 60:
		step = 5
	}
	return time.Duration(math.Ceil(s/step)*step) * time.Second
}

// enoughDollars writes an amount of US dollars for a flag, rounded up to two digits.
func enoughDollars(usd float64) string {
	if !(usd > 0) {
		return "0"
	}
	places := 1 - int(math.Floor(math.Log10(usd)))
	scale := math.Pow(10, float64(places))
	return strconv.FormatFloat(math.Ceil(usd*scale-1e-9)/scale, 'f', max(places, 0), 64)
}
