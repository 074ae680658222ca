// Package sizespicture draws what was predicted of a run's attempts beside what came.
package sizespicture

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/svg"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/words"
)

// The least, the most and the usual width of a picture, in pixels.
const (
	LeastWidth = 320
	MostWidth  = 2000
	UsualWidth = 1000
)

// The layout, in pixels.
const (
	margin    = 16
	titleLine = 30
	legendRow = 18
	// sideBySide is the least width at which memory and run time of a stage lie beside each other, and threeBeside that at
	// which its speed does so too.
	sideBySide  = 760
	threeBeside = 960
	stageHead   = 30
	bareRow     = stageHead + 24 // of a stage of which there is nothing to compare
	panelHead   = 20
	plotHeight  = 170
	panelFoot   = 46 // ticks and the feature below a plot
	tickRoom    = 70 // ticks left of a plot
	panelRow    = panelHead + plotHeight + panelFoot
	// character is about how wide one is at 12 pixels.
	character = 6.6
)

// mostStages is how many stages are drawn: browsers refuse pictures of more than some 30,000 pixels.
const mostStages = 50

// mostTitles is how many points of a plot tell their numbers where the pointer rests: more are too close to be pointed
// at.
const mostTitles = 400

// style has the colours for light and dark. What is told by colour is told by form too.
const style = `.ground{fill:#fff}.t{fill:#1b1f24}.m{fill:#57606a}.line{stroke:#dfe3e8}.frame{stroke:#8b949e}
.band,.area{fill:#1f5fa8;fill-opacity:.22}.area{fill-opacity:.13}.mid{stroke:#1f5fa8;stroke-width:1.5;fill:none}
.granted{stroke:#57606a;stroke-width:1.5;stroke-dasharray:3 2;fill:none}
.pool{fill:#1b1f24}.function{fill:#fff;stroke:#b4560d;stroke-width:1.6}
.killed{stroke:#b3261e;stroke-width:2;fill:none}
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
.h{font-size:15px;font-weight:600}.b{font-weight:600}.r{text-anchor:end}.c{text-anchor:middle}
@media (prefers-color-scheme:dark){.ground{fill:#15181c}.t{fill:#e4e7eb}.m{fill:#9ba5b1}.line{stroke:#31373f}
.frame{stroke:#6e7781}.band{fill:#7db3ee;fill-opacity:.28}.area{fill:#7db3ee;fill-opacity:.17}
.mid{stroke:#7db3ee}.granted{stroke:#9ba5b1}
.pool{fill:#e4e7eb}.function{fill:#15181c;stroke:#eda25f}.killed{stroke:#f28b82}}
`

// Draw returns the picture of a run, this wide and as high as it takes: a row for each stage, with its peaks of memory
// and its run times over what explains them, and how fast it is over the cores that it has where that is known or
// several sizes were tried, side by side where there is room. Of many stages it draws the first, and says how many
// there are besides.
func Draw(run string, stages []hindsight.Stage, width int) []byte {
	besides := max(0, len(stages)-mostStages)
	stages = stages[:len(stages)-besides]
	width = min(max(width, LeastWidth), MostWidth)
	p := &picture{width: width}
	legend := p.legendRows()
	top := margin + titleLine + legend*legendRow
	height := top + margin
	for _, stage := range stages {
		height += p.heightOf(stage)
	}
	if len(stages) == 0 || besides > 0 {
		height += bareRow
	}
	p.Drawing = svg.New(width, height, "What was predicted of "+run+" beside what came", style)
	p.Rect("ground", 0, 0, float64(width), float64(height), "")
	p.Text("t h", margin, margin+14, fitted(run+": what was predicted, and what came", width-2*margin))
	p.legend()
	if len(stages) == 0 {
		p.Text("m", margin, float64(top+20), "No attempt has ended yet.")
	}
	for _, stage := range stages {
		p.stage(stage, float64(top))
		top += p.heightOf(stage)
	}
	if besides > 0 {
		p.Text("m", margin, float64(top+20), words.Count(besides, "more stage")+": ask for one by its name (stage=NAME)")
	}
	return p.End()
}

// picture is one that is half drawn.
type picture struct {
	*svg.Drawing
	width      int
	panelWidth float64 // of the stage that is drawn
}

// panel is a comparison to draw.
type panel struct {
	what  string
	of    hindsight.Comparison
	write func(float64) string
}

// panelsOf are those of a stage.
func panelsOf(stage hindsight.Stage) []panel {
	panels := []panel{{"peak memory", stage.Memory, Bytes}, {"run time", stage.Wall, Seconds}}
	if stage.Speed.Attempts > 0 {
		panels = append(panels, panel{"speed", stage.Speed, Times})
	}
	return panels
}

// columns is how many panels of a stage lie beside each other.
func (p *picture) columns(panels int) int {
	switch {
	case p.width >= threeBeside:
		return panels
	case p.width >= sideBySide:
		return 2
	default:
		return 1
	}
}

// entry is one of the legend.
type entry struct{ kind, text string }

var entries = []entry{
	{"band", "middle 80% of the prediction, and its middle"},
	{"pool", "came at the pool"},
	{"function", "came at a function"},
	{"granted", "memory granted"},
	{"killed", "killed at its limit"},
}

const legendMark = 22

// places are where the entries of the legend begin, by row, and how many rows they take.
func (p *picture) places() (at [][2]float64, rows int) {
	x, row := float64(margin), 0
	for _, one := range entries {
		wide := legendMark + float64(len(one.text))*character + margin
		if x > margin && x+wide > float64(p.width) {
			x, row = margin, row+1
		}
		at = append(at, [2]float64{x, float64(row)})
		x += wide
	}
	return at, row + 1
}

func (p *picture) legendRows() int {
	_, rows := p.places()
	return rows
}

func (p *picture) legend() {
	places, _ := p.places()
	for i, one := range entries {
		x, y := places[i][0], margin+titleLine+places[i][1]*legendRow
		middle := x + 8
		switch one.kind {
		case "band":
			p.whiskers([][3]float64{{middle, y - 6, y + 6}}, 8)
			p.Path("mid", dash(middle, y, 6), "")
		case "granted":
			p.Path("granted", dash(middle, y, 8), "")
		default:
			p.mark(one.kind, middle, y, 3.5, "")
		}
		p.Text("m", x+legendMark, y+4, one.text)
	}
}

// bare reports whether there is nothing to compare of a stage.
func bare(stage hindsight.Stage) bool { return len(stage.Memory.Points)+len(stage.Wall.Points) == 0 }

// heightOf is that of the row of a stage.
func (p *picture) heightOf(stage hindsight.Stage) int {
	if bare(stage) {
		return bareRow
	}
	panels := len(panelsOf(stage))
	columns := p.columns(panels)
	return stageHead + panelRow*((panels+columns-1)/columns)
}

// stage draws the row of a stage.
func (p *picture) stage(stage hindsight.Stage, top float64) {
	p.Line("line", margin, top, float64(p.width-margin), top, "")
	p.Text("t b", margin, top+20, fitted(stage.Stage, p.width/2))
	p.Text("m r", float64(p.width-margin), top+20, words.Count(stage.Attempts, "attempt"))
	if bare(stage) {
		p.Text("m", margin, top+stageHead+10, "no attempt succeeded, and none was killed at its limit")
		return
	}
	panels := panelsOf(stage)
	columns := p.columns(len(panels))
	p.panelWidth = float64(p.width-(columns+1)*margin) / float64(columns)
	for i, one := range panels {
		left := margin + float64(i%columns)*(p.panelWidth+margin)
		p.panel(one.what, one.of, one.write, left, top+stageHead+float64(i/columns*panelRow))
	}
}

// panel draws one comparison.
func (p *picture) panel(what string, c hindsight.Comparison, write func(float64) string, left, top float64) {
	p.Text("t", left, top+12, what)
	p.Text("m r", left+p.panelWidth, top+12, fitted(Summary(c), int(p.panelWidth)-len(what)*8))
	area := box{left + tickRoom, top + panelHead, left + p.panelWidth - 6, top + panelHead + plotHeight}
	if len(c.Points) == 0 {
		p.Rect("line", area.left, area.bottom, area.right-area.left, 1, "")
		p.Text("m c", (area.left+area.right)/2, (area.top+area.bottom)/2, "nothing to compare")
		return
	}
	across, up := axesOf(c, area)
	inBytes := up.binary
	for _, tick := range up.ticks(5) {
		y := up.at(tick)
		p.Line("line", area.left, y, area.right, y, "")
		p.Text("m r", area.left-6, y+4, write(tick))
	}
	writeFeature := Writer(c.Feature)
	for _, tick := range across.ticks(max(2, int((area.right-area.left)/80))) {
		x := across.at(tick)
		p.Line("frame", x, area.bottom, x, area.bottom+4, "")
		p.Text("m c", x, area.bottom+17, writeFeature(tick))
	}
	p.Line("frame", area.left, area.bottom, area.right, area.bottom, "")
	p.Text("m c", (area.left+area.right)/2, area.bottom+34, fitted(Over(c)+scaleNote(across, up), int(p.panelWidth)))
	p.curve(c.Curve, across, up)
	p.points(c, across, up, func(point hindsight.Point) string {
		return told(point, writeFeature, write, Over(c), inBytes)
	})
}

// scaleNote says which axes are logarithmic.
func scaleNote(across, up axis) string {
	switch {
	case across.log && up.log:
		return " (both axes logarithmic)"
	case across.log:
		return " (logarithmic)"
	case up.log:
		return " (upright axis logarithmic)"
	default:
		return ""
	}
}

// curve draws what is predicted over the feature: an area from its lower end to its upper, and a line in its middle.
func (p *picture) curve(curve []hindsight.CurvePoint, across, up axis) {
	if len(curve) == 0 {
		return
	}
	var line, over, back strings.Builder
	at := func(x, value float64) string { return svg.Pixels(across.at(x)) + " " + svg.Pixels(up.at(value)) }
	for i, point := range curve {
		lead := "L"
		if i == 0 {
			lead = "M"
		}
		line.WriteString(lead + at(point.At, point.Predicted.Mid))
		over.WriteString(lead + at(point.At, point.Predicted.High))
		last := curve[len(curve)-1-i]
		back.WriteString("L" + at(last.At, last.Predicted.Low))
	}
	p.Path("area", over.String()+back.String()+"z", "")
	p.Path("mid", line.String(), "")
}

// points draws the attempts: first what was expected and granted, then what came.
func (p *picture) points(c hindsight.Comparison, across, up axis, tell func(hindsight.Point) string) {
	wide := min(max(0.7*(across.to-across.from)/float64(len(c.Points)), 3), 10)
	var bands [][3]float64
	var mids, granted strings.Builder
	for _, point := range c.Points {
		x := across.at(point.At)
		if expected := point.Predicted; expected.High > 0 {
			bands = append(bands, [3]float64{x, up.at(expected.High), up.at(expected.Low)})
			mids.WriteString(dash(x, up.at(expected.Mid), wide/2+1))
		}
		if point.Granted > 0 {
			granted.WriteString(dash(x, up.at(point.Granted), wide/2+2))
		}
	}
	p.whiskers(bands, wide)
	p.Path("mid", mids.String(), "")
	p.Path("granted", granted.String(), "")
	radius := 3.0
	if len(c.Points) > mostTitles {
		radius = 1.8
	}
	for _, point := range c.Points {
		kind, title := string(point.Venue), ""
		if point.Killed {
			kind = "killed"
		}
		if len(c.Points) <= mostTitles {
			title = tell(point)
		}
		p.mark(kind, across.at(point.At), up.at(point.Actual), radius, title)
	}
}

// whiskers draws upright lines, each {x, from, to}, as one, so that those that lie upon each other are no darker.
func (p *picture) whiskers(lines [][3]float64, wide float64) {
	var commands strings.Builder
	for _, line := range lines {
		from, high := min(line[1], line[2]), max(math.Abs(line[2]-line[1]), 1)
		commands.WriteString("M" + svg.Pixels(line[0]-wide/2) + " " + svg.Pixels(from) + "h" + svg.Pixels(wide) +
			"v" + svg.Pixels(high) + "h-" + svg.Pixels(wide) + "z")
	}
	p.Path("band", commands.String(), "")
}

// dash is a level line as commands of a path.
func dash(x, y, half float64) string {
	return "M" + svg.Pixels(x-half) + " " + svg.Pixels(y) + "h" + svg.Pixels(2*half)
}

// mark draws what came of one attempt.
func (p *picture) mark(kind string, x, y, half float64, title string) {
	switch kind {
	case "killed":
		h := svg.Pixels(2 * (half + 1))
		p.Path(kind, "M"+svg.Pixels(x-half-1)+" "+svg.Pixels(y-half-1)+"l"+h+" "+h+"m-"+h+" 0l"+h+" -"+h, title)
	case string(predictor.Function):
		h := svg.Pixels(half + 1)
		p.Path(kind, "M"+svg.Pixels(x)+" "+svg.Pixels(y-half-1)+"l"+h+" "+h+"l-"+h+" "+h+"l-"+h+" -"+h+"z", title)
	default:
		p.Circle(string(predictor.Pool), x, y, half, title)
	}
}

// Summary says how many attempts of a comparison came as predicted.
func Summary(c hindsight.Comparison) string {
	var parts []string
	switch {
	case c.Attempts == 0:
		return ""
	case c.Predicted == 0:
		parts = append(parts, "nothing was predicted")
	default:
		parts = append(parts, fmt.Sprintf("%d of %d within the band", c.Within, c.Predicted))
	}
	if c.Killed > 0 {
		parts = append(parts, strconv.Itoa(c.Killed)+" killed at the limit")
	}
	if len(c.Points) < c.Attempts {
		parts = append(parts, fmt.Sprintf("%d of %d drawn", len(c.Points), c.Attempts))
	}
	return strings.Join(parts, "; ")
}

// Over names what a comparison is shown over.
func Over(c hindsight.Comparison) string {
	switch c.Feature {
	case "":
		return "attempts in the order in which they ended"
	case usage.InputBytes:
		return "bytes of input"
	case hindsight.Cores:
		if len(c.Curve) == 0 {
			return "cores; 1 is the speed of most attempts"
		}
		return "cores; 1 is the speed with one"
	default:
		return c.Feature
	}
}

// Writer writes values of a feature.
func Writer(feature string) func(float64) string {
	if feature == usage.InputBytes {
		return Bytes
	}
	return func(value float64) string {
		if whole := math.Trunc(value); whole == value && math.Abs(value) < 1e6 {
			return strconv.FormatFloat(value, 'f', 0, 64)
		}
		return strconv.FormatFloat(value, 'g', 4, 64)
	}
}

// Seconds writes a run time, short ones in milliseconds, down to those at the foot of a logarithmic axis.
func Seconds(value float64) string {
	if value > 0 && value < 0.0995 {
		return strconv.FormatFloat(1000*value, 'g', 3, 64) + " ms"
	}
	return words.Seconds(value)
}

// Times writes a speed: "1.9x".
func Times(value float64) string { return strconv.FormatFloat(value, 'g', 3, 64) + "x" }

// Bytes writes a size in bytes.
func Bytes(value float64) string {
	return quantity.Bytes(min(max(value, 0), math.MaxInt64/2)).String()
}

// told says the numbers of a point.
func told(point hindsight.Point, feature, write func(float64) string, over string, inBytes bool) string {
	at := over + ": " + feature(point.At)
	came := "took " + write(point.Actual)
	if point.Killed {
		came = "killed at " + write(point.Actual)
	}
	where := " at the pool"
	if point.Venue == predictor.Function {
		where = " at a function"
	}
	text := at + "; " + came + where
	if expected := point.Predicted; expected.High > 0 {
		text += fmt.Sprintf("; predicted %s (%s to %s)", write(expected.Mid), write(expected.Low), write(expected.High))
	}
	if point.Granted > 0 && inBytes && !point.Killed {
		text += "; granted " + write(point.Granted)
	}
	return text
}

// fitted cuts a text to a width in pixels.
func fitted(text string, width int) string {
	most := max(8, int(float64(width)/character))
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
