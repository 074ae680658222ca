package display

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/workers/partition/appraisal"
)

// The layout of the picture, in pixels.
const (
	svgWidth     = 1000
	svgMargin    = 16
	svgHead      = 76 // title and legend
	svgRow       = 34
	svgBox       = 22 // of a row
	svgMemory    = 150
	svgMemoryEnd = 310
	svgTime      = 330
	svgTimeEnd   = svgWidth - svgMargin
	svgFoot      = 44
	// svgMostRows is how many devices are shown.
	svgMostRows = 64
	// svgNumber is the least width of a span that has the number of its micro-batch in it.
	svgNumber = 15
)

// svgStyle has the colours for light and dark: blue, orange and green of equal lightness, which people with any colour
// vision tell apart by their place and number too.
const svgStyle = `<style>
.b{fill:#fff}.t{fill:#1f2328}.m{fill:#59636e}.g{fill:#e6eaef}.l{stroke:#c7ced6}.u{stroke:#cf222e}
.mem{fill:#a9b8d6}.forward,.batch,.load{fill:#3b82c4}.backward{fill:#b35f00}
.recompute{fill:#7d6b00}.all-reduce{fill:#1f7f5c}.n{fill:#fff}
text{font:12px system-ui,sans-serif}.h{font-size:15px;font-weight:600}.n{font-size:10px;text-anchor:middle}
.r{text-anchor:end}.c{text-anchor:middle}
@media (prefers-color-scheme:dark){.b{fill:#0d1117}.t{fill:#e6edf3}.m{fill:#9aa4af}
.g{fill:#222a33}.l{stroke:#3a434d}.u{stroke:#ff7b72}
.mem{fill:#4a5b86}}
</style>
`

// PlanSVG returns a picture of a partition: a row for each device with how full its memory is, and what it does when,
// or how long it is busy where the plan is no pipeline. It has no script and loads nothing; names from the graph are
// escaped.
func PlanSVG(p appraisal.Report) []byte {
	d := &drawing{}
	rows := 0
	if p.Plan != nil {
		rows = min(len(p.Plan.Devices), svgMostRows)
	}
	height := svgHead + rows*svgRow + svgFoot
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", svgWidth,
		height, svgWidth, height)
	d.add("<title>%s</title>\n%s", escaped("Plan of "+p.Graph.Name), svgStyle)
	d.rect("b", 0, 0, svgWidth, float64(height), "")
	d.text("t h", svgMargin, 28, cut(Clean(p.Graph.Name), 60)+headline(p))
	if p.Plan == nil {
		d.text("m", svgMargin, 52, cut(Clean(reasonOf(p)), 150))
		return d.end()
	}
	most, what := p.Plan.Seconds, "busy with work and transfers in a batch"
	for _, device := range p.Plan.Devices {
		most = max(most, device.LoadSeconds)
	}
	if c := p.Plan.Schedule; c != nil && len(c.Spans) > 0 {
		most, what = c.Seconds, "schedule "+c.Name
		if c.Name == streamName {
			what = "the first batches of a stream"
		}
	}
	d.scale = (svgTimeEnd - svgTime) / cmp.Or(most, 1)
	d.legend(p.Plan)
	d.text("m", svgMargin, svgHead-10, "device")
	d.text("m", svgMemory, svgHead-10, "peak memory")
	d.text("m", svgTime, svgHead-10, what)
	d.axis(most, svgHead+rows*svgRow)
	spans := spansByStage(p.Plan)
	for i, device := range p.Plan.Devices[:rows] {
		d.device(p.Plan, device, spans[device.Stage], svgHead+i*svgRow)
	}
	if more := len(p.Plan.Devices) - rows; more > 0 {
		d.text("m", svgMargin, height-12, "and "+Count(more, "device")+" more")
	}
	return d.end()
}

func reasonOf(p appraisal.Report) string {
	if p.Infeasible == nil {
		return ""
	}
	return p.Infeasible.Reason
}

// headline is what the plan comes to.
func headline(p appraisal.Report) string {
	if p.Plan == nil {
		return ": nothing fits"
	}
	text := ": " + measured(p.Objective) + " " + brief(p.Plan.Seconds)
	if p.Objective == "step" {
		text += fmt.Sprintf(", %s, %s", Count(len(p.Plan.Stages), "stage"), batches(p.Plan.MicroBatches))
	}
	if c := p.Plan.Schedule; c != nil && c.Name != streamName {
		text += ", bubble " + percent(c.Bubble)
	}
	return text
}

// spansByStage are the spans of each stage; index 0 has none.
func spansByStage(plan *appraisal.Plan) map[int][]appraisal.Span {
	by := map[int][]appraisal.Span{}
	if plan.Schedule != nil {
		for _, span := range plan.Schedule.Spans {
			by[span.Stage] = append(by[span.Stage], span)
		}
	}
	return by
}

// drawing is a picture that is half drawn.
type drawing struct {
	out   strings.Builder
	scale float64 // pixels for a second
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(&d.out, format, args...) }

func (d *drawing) end() []byte {
	d.add("</svg>\n")
	return []byte(d.out.String())
}

// rect draws a box; a title is shown where the pointer rests.
func (d *drawing) rect(class string, x, y, width, height float64, title string) {
	d.add(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"`, class, pixels(x), pixels(y), pixels(width),
		pixels(height))
	if title == "" {
		d.add("/>\n")
		return
	}
	d.add("><title>%s</title></rect>\n", escaped(title))
}

func (d *drawing) text(class string, x float64, y int, text string) {
	d.add(`<text class="%s" x="%s" y="%d">%s</text>`+"\n", class, pixels(x), y, escaped(text))
}

// legend names the colours that are in the picture.
func (d *drawing) legend(plan *appraisal.Plan) {
	if plan.Schedule == nil {
		return
	}
	seen := map[string]bool{}
	for _, span := range plan.Schedule.Spans {
		seen[span.Kind] = true
	}
	const slot, square = 88, 11
	x := float64(svgTimeEnd)
	for _, kind := range []string{"batch", "all-reduce", "recompute", "backward", "forward"} {
		if seen[kind] {
			x -= slot
			d.rect(kind, x, svgHead-20, square, square, "")
			d.text("m", x+square+5, svgHead-10, kind)
		}
	}
}

// axis draws the scale of time below the rows.
func (d *drawing) axis(most float64, bottom int) {
	step := niceStep(most / 8)
	for n := 0; step > 0 && float64(n)*step <= most*(1+1e-9); n++ {
		at := float64(n) * step
		x := svgTime + at*d.scale
		d.add(`<line class="l" x1="%s" x2="%s" y1="%d" y2="%d"/>`+"\n", pixels(x), pixels(x), svgHead-4, bottom+2)
		class := "m c"
		if x > svgTimeEnd-svgMargin {
			class = "m r"
		}
		d.text(class, x, bottom+18, brief(at))
	}
}

// niceStep is the next 1, 2 or 5 times a power of ten from x up; 0 for what is no positive number.
func niceStep(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 0) {
		return 0
	}
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, times := range []float64{1, 2, 5} {
		if times*power >= x {
			return times * power
		}
	}
	return 10 * power
}

// device draws a row.
func (d *drawing) device(plan *appraisal.Plan, device appraisal.Device, spans []appraisal.Span, top int) {
	y, middle := float64(top)+4, top+19
	class := "t"
	if len(device.Ops) == 0 {
		class = "m"
	}
	d.text(class, svgMargin, middle, cut(Clean(device.ID), 18))
	d.rect("g", svgMemory, y, svgMemoryEnd-svgMemory, svgBox, "")
	if device.MemoryBytes > 0 {
		full := min(float64(device.PeakBytes)/float64(device.MemoryBytes), 1)
		d.rect("mem", svgMemory, y, full*(svgMemoryEnd-svgMemory), svgBox, peak(device))
	}
	d.text("t c", (svgMemory+svgMemoryEnd)/2, middle, peak(device))
	switch {
	case len(device.Ops) == 0:
		d.text("m", svgTime+4, middle, "not used")
	case len(spans) == 0:
		d.rect("load", svgTime, y, device.LoadSeconds*d.scale, svgBox, brief(device.LoadSeconds))
		if plan.Seconds > 0 {
			x := pixels(svgTime + plan.Seconds*d.scale)
			d.add(`<line class="u" stroke-dasharray="3 2" x1="%s" x2="%s" y1="%d" y2="%d"><title>%s</title></line>`+"\n", x, x,
				top, top+svgRow, brief(plan.Seconds))
		}
	default:
		for _, span := range spans {
			d.span(span, y, middle)
		}
	}
}

func (d *drawing) span(s appraisal.Span, y float64, middle int) {
	const gap = 0.5 // between spans that touch
	x, width := svgTime+s.StartSeconds*d.scale, (s.EndSeconds-s.StartSeconds)*d.scale
	title := fmt.Sprintf("%s %d, stage %d: %s to %s", s.Kind, s.MicroBatch, s.Stage, brief(s.StartSeconds),
		brief(s.EndSeconds))
	if s.Kind == "all-reduce" {
		title = fmt.Sprintf("%s, stage %d: %s to %s", s.Kind, s.Stage, brief(s.StartSeconds), brief(s.EndSeconds))
	}
	d.rect(s.Kind, x, y, max(width-gap, 0.2), svgBox, title)
	if width >= svgNumber && s.Kind != "all-reduce" {
		d.text("n", x+width/2, middle-1, strconv.Itoa(s.MicroBatch))
	}
}

// pixels writes a length with two digits after the point, as many as a screen can show.
func pixels(x float64) string { return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64) }

// escaped makes text safe inside of XML, where control characters and broken UTF-8 have no place at all.
func escaped(text string) string { return html.EscapeString(strings.ToValidUTF8(Clean(text), "?")) }
