package display

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/whatif"
	"github.com/spillway-ml/spillway/predictor/words"
)

// mostPoints is how many points of a frontier are listed besides those that a sentence is about; JSON has all.
const mostPoints = 10

// besideGets is how many columns a row takes besides what stages get, and leastGets how many that has at least.
const (
	besideGets = 45
	leastGets  = 30
)

// WhatIf returns the lines that say what a run could come to: the points of its frontier, and the sentences.
func WhatIf(a whatif.Answer, s Style) []string {
	lines := []string{"run       " + Clean(a.Run)}
	if a.Run == "" {
		lines = []string{"pipeline  " + Clean(a.Pipeline)}
	}
	lines = append(lines, "goal      "+goal(a.Goal))
	if a.Elapsed > 0 {
		lines = append(lines, "so far    "+seconds(a.Elapsed)+", "+money(a.Spent))
	}
	if a.Basis != "" && a.Known {
		lines = append(lines, wrapped("rests on  ", a.Basis, s.page())...)
	}
	if !a.Known {
		return append(lines, wrapped("unknown   ", a.Why, s.page())...)
	}
	titles := []string{"is", ">takes", ">costs"}
	if a.Goal.Deadline > 0 {
		titles = append(titles, ">in time")
	}
	t := newTable(append(titles, "with")...)
	points := markedPoints(a)
	same := alike(points)
	for _, one := range points {
		row := []string{one.is, seconds(one.Seconds), money(one.Cost)}
		if a.Goal.Deadline > 0 {
			row = append(row, words.Percent(one.InTime))
		}
		gets := wrapped("", whatif.Gets(without(one.Stages, same)), max(s.page()-besideGets, leastGets))
		t.add(append(row, gets[0])...)
		for _, more := range gets[1:] {
			t.add(append(make([]string, len(row)), more)...)
		}
	}
	lines = append(append(lines, ""), t.lines(s, "")...)
	if len(same) > 0 && len(same) < len(a.Present.Stages) {
		lines = append(lines, wrapped("in all: ", whatif.Gets(same), s.page())...)
	}
	lines = append(lines, "")
	for i, sentence := range a.Sentences {
		said := wrapped("", capital(sentence)+".", s.page())
		if i == 2 && a.Promise != nil && !a.Promise.Met {
			for k := range said {
				said[k] = s.paint(red, said[k])
			}
		}
		lines = append(lines, said...)
	}
	return lines
}

// alike are the stages that get the same in all points.
func alike(points []markedPoint) (same []whatif.Given) {
	for _, g := range points[0].Stages {
		if !slices.ContainsFunc(points, func(p markedPoint) bool {
			i := slices.IndexFunc(p.Stages, func(other whatif.Given) bool { return other.Stage == g.Stage })
			return i < 0 || p.Stages[i].Gets() != g.Gets()
		}) {
			same = append(same, g)
		}
	}
	return same
}

// without are stages without these, unless nothing would be left.
func without(stages, same []whatif.Given) []whatif.Given {
	if len(same) == len(stages) {
		return stages
	}
	return slices.DeleteFunc(slices.Clone(stages), func(g whatif.Given) bool {
		return slices.ContainsFunc(same, func(other whatif.Given) bool { return other.Stage == g.Stage })
	})
}

// ended reports whether an answer is about a run that has ended.
func ended(a whatif.Answer) bool { return a.Elapsed == 0 && a.Run != "" }

func capital(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// markedPoint is a point with what it is.
type markedPoint struct {
	whatif.Point
	is string
}

// markedPoints are the points to list, by rising time: those that something is said of, and of the others some.
func markedPoints(a whatif.Answer) (points []markedPoint) {
	add := func(p *whatif.Point, is string) {
		if p == nil {
			return
		}
		for i, other := range points {
			if other.Seconds == p.Seconds && other.Cost == p.Cost {
				if is != "" {
					points[i].is = strings.TrimPrefix(other.is+", "+is, ", ")
				}
				return
			}
		}
		points = append(points, markedPoint{*p, is})
	}
	present := "present"
	if ended(a) {
		present = "measured"
	}
	add(a.Present, present)
	if a.Promise != nil {
		add(&a.Promise.Plan, map[bool]string{true: "for the goal", false: "nearest to the goal"}[a.Promise.Met])
	}
	add(a.Faster, "twice as fast")
	add(a.Cheaper, "half the money")
	if len(a.Points) > 0 {
		add(&a.Points[0], "fastest")
		add(&a.Points[len(a.Points)-1], "cheapest")
	}
	for _, p := range spread(a.Points, mostPoints) {
		add(&p, "")
	}
	slices.SortStableFunc(points, func(x, y markedPoint) int {
		return cmp.Or(cmp.Compare(x.Seconds, y.Seconds), -cmp.Compare(x.Cost, y.Cost))
	})
	return points
}

// whatIfLines say in a run's summary what twice as fast would have cost and what half the money would have taken; none
// where that is not known.
func whatIfLines(a *whatif.Answer, s Style) (lines []string) {
	if a == nil || !a.Known {
		return nil
	}
	for i, sentence := range a.Sentences[:min(2, len(a.Sentences))] {
		lines = append(lines, wrapped([]string{"  what if   ", "            "}[i], sentence, s.page())...)
	}
	return lines
}
