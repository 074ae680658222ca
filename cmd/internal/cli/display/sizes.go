package display

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/sizespicture"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/words"
)

// sizeRows is how many rows a table of attempts has for each venue: with more values of the feature than that, attempts
// are grouped.
const sizeRows = 8

// Sizes sets what was predicted of the attempts of a run beside what came: two tables for each stage.
func Sizes(run string, stages []hindsight.Stage, s Style) []string {
	if len(stages) == 0 {
		return []string{Clean(run) + ": no attempt has ended yet"}
	}
	var lines []string
	for _, stage := range stages {
		lines = append(lines, s.paint(bold, Clean(stage.Stage))+"  "+Count(stage.Attempts, "attempt"))
		if stage.Memory.Attempts+stage.Wall.Attempts == 0 {
			lines = append(lines, "  nothing to compare: no attempt succeeded, and none was killed at its limit")
			continue
		}
		lines = append(lines, sizeTable("peak memory", stage.Memory, true, s)...)
		lines = append(lines, sizeTable("run time", stage.Wall, false, s)...)
		lines = append(lines, sizeTable("speed", stage.Speed, false, s)...)
	}
	return append(lines, wrapped("", "predicted: the middle 80%; a range is from the least to the most of the attempts "+
		"in its row, of predictions from the middle of their lower ends to that of their upper ones", sizesPage(s))...)
}

// sizesPage is how wide the text between the tables is: as a usual terminal at most.
func sizesPage(s Style) int { return min(s.page(), usualWidth-1) }

func sizeTable(what string, c hindsight.Comparison, inBytes bool, s Style) []string {
	if c.Attempts == 0 {
		return nil
	}
	write := sizespicture.Seconds
	switch {
	case inBytes:
		write = sizespicture.Bytes
	case c.Feature == hindsight.Cores:
		write = sizespicture.Times
	}
	columns := []string{Clean(sizespicture.Over(c)), ">attempts", ">predicted", ">came"}
	if c.Feature == "" {
		columns[0] = "as they ended"
	}
	if inBytes {
		columns = append(columns, ">granted")
	}
	if c.Killed > 0 {
		columns = append(columns, ">killed")
	}
	t := newTable(columns...)
	feature := sizespicture.Writer(c.Feature)
	venues := byVenue(c.Points)
	for _, points := range venues {
		for _, group := range groups(points) {
			cells := sizeRow(group, feature, write, inBytes, c.Killed > 0)
			if len(venues) > 1 {
				cells[1] += " " + Clean(string(group[0].Venue))
			}
			for i := range cells {
				if s.ASCII {
					cells[i] = strings.ReplaceAll(cells[i], "–", "-")
				}
			}
			t.add(cells...)
		}
	}
	lines := wrapped("  ", what+": "+sizespicture.Summary(c), sizesPage(s))
	return append(lines, t.lines(s, "    ")...)
}

// byVenue are the points of each venue, the pool first: what is predicted and granted, and the meter of memory, differ
// between them.
func byVenue(points []hindsight.Point) (venues [][]hindsight.Point) {
	var pool, elsewhere []hindsight.Point
	for _, point := range points {
		if point.Venue == predictor.Function {
			elsewhere = append(elsewhere, point)
		} else {
			pool = append(pool, point)
		}
	}
	return slices.DeleteFunc([][]hindsight.Point{pool, elsewhere}, func(of []hindsight.Point) bool { return len(of) == 0 })
}

// groups are attempts with equal values of the feature, or where these are many, about equally many neighbours.
func groups(points []hindsight.Point) (groups [][]hindsight.Point) {
	for start := 0; start < len(points); {
		end := start
		for end < len(points) && points[end].At == points[start].At {
			end++
		}
		groups = append(groups, points[start:end])
		start = end
	}
	if len(groups) <= sizeRows {
		return groups
	}
	groups = groups[:0:0]
	for i := range sizeRows {
		groups = append(groups, points[i*len(points)/sizeRows:(i+1)*len(points)/sizeRows])
	}
	return groups
}

// sizeRow tells of the attempts of a group, all of one venue.
func sizeRow(group []hindsight.Point, feature, write func(float64) string, inBytes, tellKilled bool) []string {
	var low, high, came, granted []float64
	killed := 0
	for _, point := range group {
		if point.Predicted != (predictor.Interval{}) {
			low, high = append(low, point.Predicted.Low), append(high, point.Predicted.High)
		}
		if point.Granted > 0 {
			granted = append(granted, point.Granted)
		}
		if point.Killed {
			killed++
		} else {
			came = append(came, point.Actual)
		}
	}
	predicted := "-"
	if len(low) > 0 {
		predicted = extent(write, medianOf(low), medianOf(high))
	}
	row := []string{
		extent(feature, group[0].At, group[len(group)-1].At), strconv.Itoa(len(group)), predicted, extentOf(write, came),
	}
	if inBytes {
		row = append(row, extentOf(write, granted))
	}
	if tellKilled {
		row = append(row, strconv.Itoa(killed))
	}
	return row
}

// medianOf is the median of values, the lower of the middle two.
func medianOf(values []float64) float64 {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}

// extentOf is from the least to the most of values.
func extentOf(write func(float64) string, values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	return extent(write, slices.Min(values), slices.Max(values))
}

// extent writes from the least to the most, with a unit that both have once: "98–110 MiB", "0.097–0.13 s".
func extent(write func(float64) string, least, most float64) string {
	from, to := write(least), write(most)
	if from == to {
		return from
	}
	number, unit, found := strings.Cut(from, " ")
	switch _, other, _ := strings.Cut(to, " "); {
	case found && unit == other:
		from = number
	case unit == "ms" && other == "s":
		from, _, _ = strings.Cut(words.Seconds(least), " ")
	}
	return from + "–" + to
}
