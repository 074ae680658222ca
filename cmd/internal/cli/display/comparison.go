package display

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/svg"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/threeway"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Comparison is where a stage runs, at a rate and over rates, with what it rests on.
type Comparison struct {
	Measured predictor.Measured `json:"measured"`
	// RateSource says why it is this rate.
	RateSource string             `json:"rate_source"`
	Host       threeway.Host      `json:"host"`
	Container  threeway.Container `json:"container"`
	Functions  threeway.Functions `json:"functions"`
	threeway.Comparison
}

// Lines are what a terminal shows of it.
func (r Comparison) Lines(s Style) []string {
	m := r.Measured
	lines := []string{s.paint(bold, Clean(m.Stage)) + "  " + fmt.Sprintf("a million tasks at %s, %s", rate(r.At.Rate),
		r.RateSource)}
	t := newTable("where", ">a million", ">p50", ">p99", ">cold", "how many")
	cheapest := r.At.Cheapest()
	anyLate := slices.ContainsFunc(r.At.Ways, func(e threeway.Estimate) bool { return e.Late })
	for _, e := range r.At.Ways {
		name, note := string(e.Way), r.counted(e)
		if e.Beyond {
			note += ", more than the " + words.Grouped(r.Measured.Venue.Concurrency) + " that there are"
		}
		if e.Way == cheapest.Way {
			note += ", the cheapest"
			if anyLate && !e.Late {
				note += " in time"
			}
		}
		if e.Late {
			note += ", late"
		}
		t.add(name, dollars(e.Million), seconds(e.P50), seconds(e.P99), words.Percent(e.Cold), note)
	}
	lines = append(append(lines, t.lines(s, "  ")...), "")
	for i, span := range r.Cheapest {
		where := "from " + rate(span.From) + " on"
		switch {
		case len(r.Cheapest) == 1:
			where = "at every rate from " + rate(span.From) + " to " + rate(span.To)
		case i == 0:
			where = "below " + rate(span.To)
		}
		text := fmt.Sprintf("%s are in time at the least cost %s", span.Way, where)
		if span.Late {
			text = fmt.Sprintf("nothing is in time (%s) %s; of what is late, %s cost least", seconds(r.Within), where, span.Way)
		}
		lines = append(lines, "  "+text)
	}
	lines = append(lines, "")
	over := newTable(">tasks", ">hosts", ">containers", ">functions", ">p99 of each", "cheapest")
	for _, point := range r.shown() {
		var latencies []string
		cells := []string{rate(point.Rate)}
		for _, e := range point.Ways {
			cells, latencies = append(cells, dollars(e.Million)), append(latencies, marked(e))
		}
		over.add(append(cells, strings.Join(latencies, ", "), string(point.Cheapest().Way))...)
	}
	lines = append(lines, over.lines(s, "  ")...)
	return append(append(lines, ""), wrapped("  ", r.basis(), s.page())...)
}

// shown are every third of the rates, and the last.
func (r Comparison) shown() (points []threeway.Point) {
	for i, point := range r.Over {
		if i%3 == 0 || i == len(r.Over)-1 {
			points = append(points, point)
		}
	}
	return points
}

// marked is the 99th percentile of latency, and whether that is late or more than there is.
func marked(e threeway.Estimate) string {
	switch {
	case e.Beyond:
		return seconds(e.P99) + " (too many)"
	case e.Late:
		return seconds(e.P99) + " (late)"
	}
	return seconds(e.P99)
}

// many writes "1 host", "11,472 hosts".
func many(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return words.Grouped(n) + " " + one + "s"
}

// counted says how many there are of what a way has.
func (r Comparison) counted(e threeway.Estimate) string {
	switch {
	case e.Way == threeway.Hosts:
		return many(e.Units, "host") + " held, " + many(e.Units*r.Host.Slots, "slot")
	case e.Each:
		return "one started for each task, " + words.Grouped(e.Units) + " at a time"
	case e.Way == threeway.Containers:
		return many(e.Units, "container") + " held"
	}
	return words.Grouped(e.Units) + " at a time"
}

// basis says what the figures rest on.
func (r Comparison) basis() string {
	m := r.Measured
	measured := Count(m.AtPool, "attempt") + " at the pool"
	if m.AtFunctions > 0 {
		measured += " and " + strconv.Itoa(m.AtFunctions) + " at functions"
	}
	cold := "a cold start of " + seconds(m.Cold) + ", which was not measured"
	if m.Colds > 0 {
		cold = fmt.Sprintf("a cold start of %s, the mean of %d", seconds(m.Cold), m.Colds)
	}
	slower := "not measured there: by its speed with other cores"
	if m.AtFunctions > 0 {
		slower = "as measured there"
	}
	late := ""
	isLate := func(e threeway.Estimate) bool { return e.Late }
	if slices.ContainsFunc(append([]threeway.Point{r.At}, r.Over...), func(p threeway.Point) bool {
		return slices.ContainsFunc(p.Ways, isLate)
	}) {
		late = "; late: 99 of 100 tasks do not end within that"
	}
	return fmt.Sprintf("by %s; a slot has %s. Hosts: %s at %s an hour, %s each. Containers: %s of %s at %s an hour, "+
		"which start in %s and are billed for %s at least. Functions: %s at %s a GiB-second, %.2f times as long as on a "+
		"slot (%s), %s, kept for %s without work, at most %s at a time in this stack. As few are held as end 99 of 100 "+
		"tasks within %s%s.",
		measured, m.Size, Clean(r.Host.Name), r.Host.PerHour, Count(r.Host.Slots, "slot"), Clean(r.Container.Name),
		r.Container.Size, r.Container.PerHour, seconds(r.Container.Start.Seconds()), seconds(r.Container.Least.Seconds()),
		r.Functions.Class, m.Venue.PerGiBSecond, m.Slower, slower, cold, seconds(r.Functions.Kept.Seconds()),
		words.Grouped(m.Venue.Concurrency), seconds(r.Within), late)
}

// dollars writes an amount of any size to three digits: "$0.0123", "$12.3", "$1,230,000".
func dollars(usd float64) string {
	if usd == 0 || math.IsInf(usd, 0) || math.IsNaN(usd) {
		return "$0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(usd))))
	if digits >= 0 {
		return "$" + strconv.FormatFloat(usd, 'f', digits, 64)
	}
	scale := math.Pow(10, float64(-digits))
	text := strconv.FormatFloat(math.Round(usd/scale)*scale, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return "$" + text
}

// rate writes tasks in a second, a minute, an hour or a day, whichever is 1 or more.
func rate(perSecond float64) string {
	for _, unit := range []struct {
		name string
		span time.Duration
	}{{"a second", time.Second}, {"a minute", time.Minute}, {"an hour", time.Hour}} {
		if count := perSecond * unit.span.Seconds(); count >= 0.9995 {
			return threeDigits(count) + " " + unit.name
		}
	}
	return strconv.FormatFloat(perSecond*86_400, 'g', 3, 64) + " a day"
}

// threeDigits writes a number to three digits, without an exponent: "0.123", "12.3", "100,000".
func threeDigits(x float64) string {
	if x < 999.5 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	scale := math.Pow(10, math.Floor(math.Log10(x))-2)
	return words.Grouped(int64(math.Round(x/scale) * scale))
}

// The layout of the picture, in pixels.
const (
	comparisonWidth  = 900
	comparisonLeft   = 90
	comparisonRight  = 780
	comparisonTop    = 60
	comparisonPanel  = 230
	comparisonGap    = 60
	labelStep        = 14
	comparisonHeight = comparisonTop + 2*comparisonPanel + comparisonGap + 60
)

const comparisonStyle = `.b{fill:#fff}.t{fill:#1f2328}.m{fill:#59636e}
.hosts{stroke:#3b82c4;fill:#3b82c4}.containers{stroke:#7d6b00;fill:#7d6b00}.functions{stroke:#b35f00;fill:#b35f00}
path{stroke-width:2;fill:none!important}.g{stroke:#c7ced6}.l{stroke:#cf222e;stroke-dasharray:3 2}.c{text-anchor:middle}
.e{text-anchor:end}text{font:12px system-ui,sans-serif;stroke:none}.h{font-size:15px;font-weight:600}
@media (prefers-color-scheme:dark){.b{fill:#0d1117}.t{fill:#e6edf3}.m{fill:#9aa4af}.g{stroke:#3a434d}}
`

// ComparisonSVG returns a picture of what a million tasks cost and of the 99th percentile of latency over rates, each
// on logarithmic scales; lines mark the rates from which another way is cheapest. It has no script and loads nothing.
func ComparisonSVG(r Comparison) []byte {
	d := svg.New(comparisonWidth, comparisonHeight, "Where "+Clean(r.Measured.Stage)+" runs", comparisonStyle)
	d.Rect("b", 0, 0, comparisonWidth, comparisonHeight, "")
	d.Text("t h", 16, 28, cut(Clean(r.Measured.Stage), 60)+": cost of a million tasks, and the 99th percentile of latency")
	first, last := r.Over[0].Rate, r.Over[len(r.Over)-1].Rate
	across := func(value float64) float64 {
		return comparisonLeft + (comparisonRight-comparisonLeft)*math.Log(value/first)/math.Log(last/first)
	}
	panels := []struct {
		of    func(threeway.Estimate) float64
		write func(float64) string
		name  string
	}{
		{func(e threeway.Estimate) float64 { return e.Million }, dollars, "US dollars for a million tasks"},
		{func(e threeway.Estimate) float64 { return e.P99 }, seconds, "99 of 100 tasks end within"},
	}
	for i, panel := range panels {
		top := float64(comparisonTop + i*(comparisonPanel+comparisonGap))
		bottom := top + comparisonPanel
		low, high := math.Inf(1), 0.0
		for _, point := range r.Over {
			for _, e := range point.Ways {
				low, high = min(low, panel.of(e)), max(high, panel.of(e))
			}
		}
		low, high = low/1.3, high*1.3
		up := func(value float64) float64 { return bottom - comparisonPanel*math.Log(value/low)/math.Log(high/low) }
		d.Text("m", comparisonLeft, top-8, panel.name)
		for _, tick := range ticks(low, high) {
			d.Line("g", comparisonLeft, up(tick), comparisonRight, up(tick), "")
			d.Text("m e", comparisonLeft-8, up(tick)+4, panel.write(tick))
		}
		for tick := math.Pow(10, math.Ceil(math.Log10(first))); tick <= last; tick *= 10 {
			d.Line("g", across(tick), top, across(tick), bottom, "")
			d.Text("m c", across(tick), bottom+16, rate(tick))
		}
		for _, span := range r.Cheapest[1:] {
			d.Line("l", across(span.From), top, across(span.From), bottom, edge(span))
		}
		var ends []float64
		for _, e := range r.Over[len(r.Over)-1].Ways {
			ends = append(ends, up(panel.of(e)))
		}
		ends = apart(ends, labelStep, bottom)
		for k, e := range r.Over[0].Ways {
			var commands strings.Builder
			for j, point := range r.Over {
				command := "L"
				if j == 0 {
					command = "M"
				}
				commands.WriteString(command + svg.Pixels(across(point.Rate)) + " " + svg.Pixels(up(panel.of(point.Ways[k]))))
			}
			d.Path(string(e.Way), commands.String(), string(e.Way))
			d.Text(string(e.Way), comparisonRight+8, ends[k]+4, string(e.Way))
		}
	}
	d.Text("m", 16, comparisonHeight-14, fmt.Sprintf("%s at %s an hour, %s at %s, functions of %s at %s a GiB-second; "+
		"dashed: from here on another is cheapest", Clean(r.Host.Name), r.Host.PerHour, Clean(r.Container.Name),
		r.Container.PerHour,
		r.Functions.Class, r.Measured.Venue.PerGiBSecond))
	return d.End()
}

// edge says what begins at a span.
func edge(span threeway.Span) string {
	if span.Late {
		return "nothing is in time from " + rate(span.From)
	}
	return string(span.Way) + " are in time at the least cost from " + rate(span.From)
}

// ticks are the powers of ten between low and high, both above 0; where these are fewer than three, 2 and 5 times such
// ones too.
func ticks(low, high float64) (all []float64) {
	steps := []float64{1}
	if high/low < 1000 {
		steps = []float64{1, 2, 5}
	}
	for ten := math.Pow(10, math.Floor(math.Log10(low))); ten <= high; ten *= 10 {
		for _, step := range steps {
			if tick := step * ten; tick >= low && tick <= high {
				all = append(all, tick)
			}
		}
	}
	return all
}

// apart moves heights apart by a step at least, in their order, none below the bottom.
func apart(heights []float64, step, bottom float64) []float64 {
	order := make([]int, len(heights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(heights[a], heights[b]) })
	moved := slices.Clone(heights)
	for i := 1; i < len(order); i++ {
		moved[order[i]] = max(moved[order[i]], moved[order[i-1]]+step)
	}
	below := bottom
	for _, at := range slices.Backward(order) {
		moved[at] = min(moved[at], below)
		below = moved[at] - step
	}
	return moved
}
