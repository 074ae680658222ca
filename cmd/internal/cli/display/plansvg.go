package display

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spillway-ml/spillway/cmd/internal/svg"
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
const svgStyle = `.b{fill:#fff}.t{fill:#1f2328}.m{fill:#59636e}.g{fill:#e6eaef}.l{stroke:#c7ced6}.u{stroke:#cf222e}
.mem{fill:#a9b8d6}.forward,.batch,.load{fill:#3b82c4}.backward{fill:#b35f00}
.recompute{fill:#7d6b00}.all-reduce{fill:#1f7f5c}.n{fill:#fff}
text{font:12px system-ui,sans-serif}.h{font-size:15px;font-weight:600}.n{font-size:10px;text-anchor:middle}
.r{text-anchor:end}.c{text-anchor:middle}.d{stroke-dasharray:3 2}
@media (prefers-color-scheme:dark){.b{fill:#0d1117}.t{fill:#e6edf3}.m{fill:#9aa4af}
.g{fill:#222a33}.l{stroke:#3a434d}.u{stroke:#ff7b72}
.mem{fill:#4a5b86}}
`

// PlanSVG returns a picture of a partition: a row for each device with how full its memory is, and what it does when,
// or how long it is busy where the plan is no pipeline. It has no script and loads nothing; names from the graph are
// escaped.
func PlanSVG(p appraisal.Report) []byte {
	rows := 0
	if p.Plan != nil {
		rows = min(len(p.Plan.Devices), svgMostRows)
	}
	height := svgHead + rows*svgRow + svgFoot
	d := &drawing{Drawing: svg.New(svgWidth, height, "Plan of "+Clean(p.Graph.Name), svgStyle)}
	d.Rect("b", 0, 0, svgWidth, float64(height), "")
	d.text("t h", svgMargin, 28, cut(Clean(p.Graph.Name), 60)+headline(p))
	if p.Plan == nil {
		d.text("m", svgMargin, 52, cut(Clean(reasonOf(p)), 150))
		return d.End()
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
	return d.End()
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
	*svg.Drawing
	scale float64 // pixels for a second
}

func (d *drawing) text(class string, x float64, y int, text string) {
	d.Text(class, x, float64(y), text)
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
			d.Rect(kind, x, svgHead-20, square, square, "")
			d.text("m", x+square+5, svgHead-10, kind)
		}
	}
}

// axis draws the scale of time below the rows.
func (d *drawing) axis(most float64, bottom int) {
	step := svg.NiceStep(most / 8)
	for n := 0; step > 0 && float64(n)*step <= most*(1+1e-9); n++ {
		at := float64(n) * step
		x := svgTime + at*d.scale
		d.Line("l", x, svgHead-4, x, float64(bottom)+2, "")
		class := "m c"
		if x > svgTimeEnd-svgMargin {
			class = "m r"
		}
		d.text(class, x, bottom+18, brief(at))
	}
}

// device draws a row.
func (d *drawing) device(plan *appraisal.Plan, device appraisal.Device, spans []appraisal.Span, top int) {
	y, middle := float64(top)+4, top+19
	class := "t"
	if len(device.Ops) == 0 {
		class = "m"
	}
	d.text(class, svgMargin, middle, cut(Clean(device.ID), 18))
	d.Rect("g", svgMemory, y, svgMemoryEnd-svgMemory, svgBox, "")
	if device.MemoryBytes > 0 {
		full := min(float64(device.PeakBytes)/float64(device.MemoryBytes), 1)
		d.Rect("mem", svgMemory, y, full*(svgMemoryEnd-svgMemory), svgBox, peak(device))
	}
	d.text("t c", (svgMemory+svgMemoryEnd)/2, middle, peak(device))
	switch {
	case len(device.Ops) == 0:
		d.text("m", svgTime+4, middle, "not used")
	case len(spans) == 0:
		d.Rect("load", svgTime, y, device.LoadSeconds*d.scale, svgBox, brief(device.LoadSeconds))
		if plan.Seconds > 0 {
			x := svgTime + plan.Seconds*d.scale
			d.Line("u d", x, float64(top), x, float64(top)+svgRow, brief(plan.Seconds))
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
	d.Rect(s.Kind, x, y, max(width-gap, 0.2), svgBox, title)
	if width >= svgNumber && s.Kind != "all-reduce" {
		d.text("n", x+width/2, middle-1, strconv.Itoa(s.MicroBatch))
	}
}
