package display

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// diffValue is the widest that a value of a run is written in a comparison.
	diffValue = 34
	// buildDigits is how many digits of a build's digest are shown.
	buildDigits = 12
)

// Diff returns the lines that compare two runs: what differs, or with all everything. A value that a run does not have
// is "-".
func Diff(d ledger.Diff, all bool, s Style) []string {
	a, b := s.cut(Clean(d.A.Run), diffValue), s.cut(Clean(d.B.Run), diffValue)
	c := &comparison{all: all, style: s, table: newTable("", a, b, "change")}
	c.row("pipeline", Clean(d.A.Pipeline), Clean(d.B.Pipeline), "")
	c.row("state", string(d.A.State), string(d.B.State), "")
	c.row("error", Clean(d.A.Error), Clean(d.B.Error), "")
	if !d.SameInput || all {
		c.table.add("input", "", "", sameness(d.SameInput, "not known to be the same"))
	}
	c.row("build", build(d.A), build(d.B), "")
	if !d.SameBuild && build(d.A) == build(d.B) {
		c.table.add("build", "", "", "different")
	}
	c.row("goal", goal(d.A.Goal), goal(d.B.Goal), "")
	c.number("time", d.A.Actual.Seconds, d.B.Actual.Seconds, seconds)
	c.number("cost", d.A.Totals.Cost.USD(), d.B.Totals.Cost.USD(), money)
	c.number("predicted time", d.A.Predicted.FinishSeconds.Mid, d.B.Predicted.FinishSeconds.Mid, orUnknown(seconds))
	c.number("predicted cost", d.A.Predicted.Cost.Mid, d.B.Predicted.Cost.Mid, orUnknown(money))
	c.number("decisions", float64(d.A.Decisions), float64(d.B.Decisions), whole)
	for _, stage := range d.Stages {
		c.stage(stage)
	}
	c.results(d.A.Result, d.B.Result)
	if len(c.table.rows) == 1 {
		return []string{fmt.Sprintf("%s and %s do not differ", Clean(d.A.Run), Clean(d.B.Run))}
	}
	return c.table.lines(s, "")
}

// comparison collects the rows of two runs.
type comparison struct {
	all   bool
	style Style
	table *table
}

// row adds a row when the values differ, or when all rows are asked for and one of the runs has it.
func (c *comparison) row(name, a, b, change string) {
	if a == b && (!c.all || a == "") {
		return
	}
	c.table.add(name, c.style.cut(cmp.Or(a, "-"), diffValue), c.style.cut(cmp.Or(b, "-"), diffValue), change)
}

// number adds a row with how much more or less b is, when they do not read the same.
func (c *comparison) number(name string, a, b float64, write func(float64) string) {
	one, other, change := write(a), write(b), ""
	if one != other {
		change = ratio(a, b)
	}
	c.row(name, one, other, change)
}

// stage adds the rows of a stage.
func (c *comparison) stage(d ledger.StageDiff) {
	name := Clean(d.Name)
	switch {
	case d.A == nil && d.B == nil:
		return
	case d.A == nil:
		c.table.add(name, "-", stageInShort(*d.B), "")
		return
	case d.B == nil:
		c.table.add(name, stageInShort(*d.A), "-", "")
		return
	}
	a, b := *d.A, *d.B
	c.number(name+" tasks", float64(a.Done), float64(b.Done), whole)
	c.row(name+" at", venues(a.Tasks), venues(b.Tasks), "")
	c.number(name+" reused", float64(a.Reused.Tasks), float64(b.Reused.Tasks), whole)
	c.number(name+" time of one", a.ActualWall, b.ActualWall, orUnknown(seconds))
	c.number(name+" run", a.RunSeconds, b.RunSeconds, seconds)
	c.number(name+" wait of one", a.Wait.MedianSeconds, b.Wait.MedianSeconds, seconds)
	c.number(name+" longest wait", a.Wait.LongestSeconds, b.Wait.LongestSeconds, seconds)
	c.number(name+" start", a.StartSeconds, b.StartSeconds, seconds)
	c.number(name+" CPU", a.CPUSeconds, b.CPUSeconds, seconds)
	c.number(name+" cost", a.Cost.USD(), b.Cost.USD(), money)
	c.row(name+" size", a.Grant.String(), b.Grant.String(), "")
	for _, venue := range []predictor.Venue{predictor.Pool, predictor.Function} {
		peak := func(of ledger.StageView) float64 { return float64(of.Memory[venue].Peak) }
		c.number(name+" peak at "+string(venue), peak(a), peak(b), orUnknown(inUnit("bytes")))
	}
	c.number(name+" failed", float64(a.Failed), float64(b.Failed), whole)
	c.number(name+" out of memory", float64(a.OutOfMemory), float64(b.OutOfMemory), whole)
	c.number(name+" lost", float64(a.Lost), float64(b.Lost), whole)
	c.row(name+" error of time", median(a.WallError, a.WallErrors), median(b.WallError, b.WallErrors), "")
	c.row(name+" error of memory", median(a.MemoryError, a.MemoryErrors), median(b.MemoryError, b.MemoryErrors), "")
}

func stageInShort(stage ledger.StageView) string {
	return fmt.Sprintf("%s, %s, %s", Count(stage.Done, "task"), seconds(stage.RunSeconds), stage.Cost)
}

func venues(tasks map[predictor.Venue]int) string {
	return fmt.Sprintf("pool %d, function %d", tasks[predictor.Pool], tasks[predictor.Function])
}

func build(run ledger.RunView) string { return Clean(run.Build[:min(len(run.Build), buildDigits)]) }

func sameness(same bool, otherwise string) string {
	if same {
		return "the same"
	}
	return otherwise
}

// median writes the median error of so many predictions; empty for none.
func median(value float64, of int) string {
	if of == 0 {
		return ""
	}
	return percent(value) + " of " + strconv.Itoa(of)
}

func whole(value float64) string { return strconv.FormatFloat(value, 'f', 0, 64) }

// orUnknown writes 0 as nothing: it stands for what was not measured.
func orUnknown(write func(float64) string) func(float64) string {
	return func(value float64) string {
		if value == 0 {
			return ""
		}
		return write(value)
	}
}

// ratio says how much more or less b is than a: "+12%", "-50%", "3.2 times"; empty when a is nothing.
func ratio(a, b float64) string {
	if a <= 0 || b <= 0 {
		return ""
	}
	switch change := b/a - 1; {
	case change >= 1:
		return strconv.FormatFloat(b/a, 'f', 1, 64) + " times"
	case change >= 0:
		return "+" + percent(change)
	default:
		return "-" + percent(-change)
	}
}
