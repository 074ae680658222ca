package display

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/words"
)

// doneOf says how far an attempt is: "step 3", or "1,200 of 5,000 (24%)" where it told how many there are.
func doneOf(step, of int) string {
	if of <= 0 {
		return "step " + words.Grouped(step)
	}
	return fmt.Sprintf("%s of %s (%d%%)", words.Grouped(step), words.Grouped(of), int(100*float64(step)/float64(of)))
}

// stageProgress are the attempts of a stage that go on and say how far they are, those that end last first.
func stageProgress(run ledger.RunView, stage string) (found []predictor.Progress) {
	for _, one := range run.Progress {
		if one.Stage == stage {
			found = append(found, one)
		}
	}
	return found
}

// progressOf says how far the attempt of a stage is that ends last, how fast it goes, when it ends, and how many others
// say so: "312 of 1,000 (31%), 128 samples/s, 4m05s left (3m10s to 5m20s), and 2 others". Empty where none says
// anything.
func progressOf(run ledger.RunView, stage string) string {
	told := stageProgress(run, stage)
	if len(told) == 0 {
		return ""
	}
	text := doneOf(told[0].Step, told[0].Of)
	if rates := words.PerSecond(told[0].PerSecond); rates != "" {
		text += ", " + Clean(rates)
	}
	if left := told[0].Left; known(left) {
		text += fmt.Sprintf(", %s left (%s to %s)", seconds(left.Mid), seconds(left.Low), seconds(left.High))
	}
	if others := len(told) - 1; others > 0 {
		text += ", and " + Count(others, "other")
	}
	return text
}

// progressLines tell of each stage of a run that goes on how far it is.
func progressLines(run ledger.RunView, s Style) (lines []string) {
	if Ended(run) {
		return nil
	}
	for _, stage := range run.Stages {
		if said := progressOf(run, stage.Name); said != "" {
			lines = append(lines, wrapped("  ", s.cut(Clean(stage.Name), nameWidth)+" is at "+said, s.page())...)
		}
	}
	return lines
}
