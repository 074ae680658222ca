package display

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/words"
)

// cameRows and nextRows are how many minutes a table of arrivals has that are over, and that are to come.
const cameRows, nextRows = 6, 10

// Arrivals says what came at the stages of a run, of all runs, beside what had been predicted, and what is: a table for
// each stage.
func Arrivals(run string, stages []predictor.Arriving, s Style) []string {
	if len(stages) == 0 {
		return []string{Clean(run) + ": nothing has come at its stages for so long that nothing is known of it"}
	}
	var lines []string
	for _, stage := range stages {
		lines = append(lines, s.paint(bold, Clean(stage.Stage))+"  "+arrivalsSummary(stage))
		if stage.Known < stage.Enough {
			lines = append(lines, wrapped("  ", "by so little nothing is decided: "+Count(int(stage.Enough), "minute")+
				" have to be known", sizesPage(s))...)
		}
		t := newTable("minute", ">predicted", ">came", ">chance of any")
		for _, came := range stage.Came[max(0, len(stage.Came)-cameRows):] {
			predicted := "not known"
			if came.Predicted != nil {
				predicted = tasksBetween(*came.Predicted, s)
			}
			t.add(came.At.Local().Format("15:04"), predicted, strconv.Itoa(came.Tasks), "")
		}
		for i, next := range stage.Next[:min(len(stage.Next), nextRows)] {
			came := ""
			if i == 0 {
				came = fmt.Sprintf("%d so far", stage.Count)
			}
			t.add(next.At.Local().Format("15:04"), tasksBetween(next.Predicted, s), came, words.Percent(next.Chance))
		}
		lines = append(lines, t.lines(s, "    ")...)
	}
	return append(lines, wrapped("", "tasks of all runs, whatever build; predicted: the middle 80%, of a minute that is "+
		"over a minute before it", sizesPage(s))...)
}

// arrivalsSummary writes how much of the latest minutes was as predicted.
func arrivalsSummary(stage predictor.Arriving) string {
	tasks, told, within := 0, 0, 0
	for _, came := range stage.Came {
		tasks += came.Tasks
		if p := came.Predicted; p != nil {
			told++
			if float64(came.Tasks) >= p.Low-0.5 && float64(came.Tasks) <= p.High+0.5 {
				within++
			}
		}
	}
	summary := fmt.Sprintf("%s in %s", Count(tasks, "task"), Count(len(stage.Came), "minute"))
	if told > 0 {
		summary += fmt.Sprintf(", of which %d of %d came as predicted", within, told)
	}
	return summary
}

// tasksBetween writes how many tasks are predicted: "0–3".
func tasksBetween(i predictor.Interval, s Style) string {
	low, high := fmt.Sprintf("%.0f", i.Low), fmt.Sprintf("%.0f", i.High)
	if low == high {
		return low
	}
	if s.ASCII {
		return low + "-" + high
	}
	return strings.Join([]string{low, high}, "–")
}
