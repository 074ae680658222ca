package ledger

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/timeline"
)

const (
	// maxCurves bounds the curves of a run: a sweep of more tasks than that has more curves than anybody looks at.
	maxCurves = 64
	// maxCurvePoints is how many points a curve has before every second one is dropped.
	maxCurvePoints = 512
)

// curve is one metric of a task, over all attempts of the task.
type curve struct {
	stage, task, metric string
	points              []timeline.CurvePoint // by step
}

// report keeps the metrics that a task reported with a step, as they were seen at at: one point for each step.
func (l *Ledger) report(a *account, stage, task string, step int, metrics map[string]float64, at time.Time) {
	if step <= 0 || len(metrics) == 0 {
		return
	}
	for _, metric := range slices.Sorted(maps.Keys(finite(metrics))) {
		c := a.curve(stage, task, metric)
		if c == nil {
			continue
		}
		before := len(c.points)
		c.add(timeline.CurvePoint{Step: step, Value: metrics[metric], At: at})
		a.detail.points += len(c.points) - before
		l.kept.points += len(c.points) - before
	}
	for l.kept.points > l.bounds.points && l.dropCurves() {
	}
}

// dropCurves drops the curves of the oldest ended run that has some.
func (l *Ledger) dropCurves() bool {
	for _, a := range l.order {
		if a.ended() && a.detail.points > 0 {
			l.kept.points -= a.detail.points
			a.detail.curves, a.detail.points = nil, 0
			return true
		}
	}
	return false
}

// curve returns that of a task and metric, begun if there is none; nil when there are too many.
func (a *account) curve(stage, task, metric string) *curve {
	for _, c := range a.detail.curves {
		if c.task == task && c.metric == metric && c.stage == stage {
			return c
		}
	}
	if len(a.detail.curves) >= maxCurves {
		return nil
	}
	c := &curve{stage: stage, task: task, metric: metric}
	a.detail.curves = append(a.detail.curves, c)
	return c
}

// add keeps a point. A step that was reported before and is reported again later, by an attempt that went on from a
// checkpoint, takes the place of the earlier one and of all steps after it. The latest step may be told again with
// another value, which counts. What comes late or doubled is ignored.
func (c *curve) add(point timeline.CurvePoint) {
	i, again := slices.BinarySearchFunc(c.points, point.Step, func(p timeline.CurvePoint, step int) int {
		return cmp.Compare(p.Step, step)
	})
	last := len(c.points) - 1
	switch {
	case again && i == last && point.Value == c.points[i].Value: // the same step, looked at again
		return
	case i <= last && !point.At.After(c.points[last].At):
		return
	}
	if i > last && i >= maxCurvePoints {
		c.halve()
		i = len(c.points)
	}
	c.points = append(c.points[:i], point)
}

// halve drops every second point, and keeps the first and the latest.
func (c *curve) halve() {
	kept := c.points[:0]
	last := len(c.points) - 1
	for i, point := range c.points {
		if i%2 == 0 || i == last {
			kept = append(kept, point)
		}
	}
	c.points = kept
}
