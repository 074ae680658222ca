package display

import (
	"fmt"
	"strconv"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/words"
)

// learningLines tell of each stage of a run that goes on how its trainings go: what is to be looked at, as one that has
// diverged, in a line of its own before those that go on. Of several tasks of a stage in one phase the first is told.
func learningLines(run ledger.RunView, s Style) (lines []string) {
	if Ended(run) {
		return nil
	}
	type group struct{ stage, phase string }
	others := map[group]int{}
	for _, one := range run.Learning {
		others[group{one.Stage, one.Phase}]++
	}
	told := map[group]bool{}
	for _, one := range run.Learning {
		of := group{one.Stage, one.Phase}
		if told[of] {
			continue
		}
		told[of] = true
		text := s.cut(Clean(one.Stage), nameWidth) + " " + learningOf(one)
		if more := others[of] - 1; more > 0 {
			text += ", and " + Count(more, "other")
		}
		switch one.Phase {
		case "diverged", "plateaued":
			for _, line := range wrapped("  notice    ", text, s.page()) {
				lines = append(lines, s.paint(map[string]string{"diverged": red, "plateaued": yellow}[one.Phase], line))
			}
		default:
			lines = append(lines, wrapped("  ", text, s.page())...)
		}
	}
	return lines
}

// learningOf says how a training goes: "has plateaued: loss 0.31 at step 312, its best 0.3; ...".
func learningOf(one predictor.Learning) string {
	metric, at := Clean(one.Metric), "at step "+words.Grouped(int(one.Step))
	if one.Phase == "diverged" && one.Value == nil {
		text := fmt.Sprintf("has diverged: %s is not finite %s", metric, at)
		if one.Best != nil {
			text += ", its best was " + value(*one.Best)
		}
		return text
	}
	now := metric + " " + at
	if one.Value != nil {
		now = fmt.Sprintf("%s %s %s", metric, value(*one.Value), at)
	}
	if one.Best != nil && one.Value != nil && *one.Best != *one.Value {
		now += ", its best " + value(*one.Best)
	}
	switch one.Phase {
	case "diverged":
		return "has diverged, and goes on getting worse: " + now
	case "plateaued":
		return "has plateaued, hardly better since half of its steps: " + now + finalOf(one)
	case "beginning":
		return "has begun to learn: " + now + finalOf(one)
	default:
		return "learns: " + now + finalOf(one)
	}
}

// finalOf says what is expected at the end of a training, and by what: "; 0.101 (0.095 to 0.11) at step 1,000 by its
// curve and 3 earlier tasks". Empty where nothing is.
func finalOf(one predictor.Learning) string {
	if one.Final == nil {
		return ""
	}
	when := "when it ends"
	if one.Planned > 0 {
		when = "at step " + words.Grouped(int(one.Planned))
	}
	by := "its curve"
	if one.Earlier > 0 {
		by += " and " + Count(one.Earlier, "earlier task")
	}
	return fmt.Sprintf("; %s (%s to %s) %s by %s", value(one.Final.Mid), value(one.Final.Low), value(one.Final.High), when,
		by)
}

// value is a metric with four digits.
func value(of float64) string { return strconv.FormatFloat(of, 'g', 4, 64) }

// stageLearning are the trainings of tasks of a stage that run.
func stageLearning(run ledger.RunView, stage string) (found []predictor.Learning) {
	for _, one := range run.Learning {
		if one.Stage == stage {
			found = append(found, one)
		}
	}
	return found
}
