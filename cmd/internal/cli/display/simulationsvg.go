package display

import (
	"cmp"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/cmd/internal/svg"
)

// The layout of the picture, in pixels.
const (
	simulationWidth = 900
	simulationHead  = 84
	simulationRow   = 34
	simulationBox   = 18
	simulationCost  = 110 // where bars of costs begin
	simulationUSD   = 400 // and end
	simulationTime  = 520 // where bars of latencies begin
	simulationEnd   = 760 // and end
)

const simulationStyle = `.b{fill:#fff}.t{fill:#1f2328}.m{fill:#59636e}
.host,.p50{fill:#3b82c4}.function,.p99{fill:#b35f00}.p95{fill:#7d6b00}
.g,.s{stroke:#c7ced6}.l{stroke:#cf222e;stroke-dasharray:3 2}.c{text-anchor:middle}
text{font:12px system-ui,sans-serif}.h{font-size:15px;font-weight:600}.k{font-weight:600}
@media (prefers-color-scheme:dark){.b{fill:#0d1117}.t{fill:#e6edf3}.m{fill:#9aa4af}.g,.s{stroke:#3a434d}}
`

// SimulationSVG returns a picture of what each policy costs, hosts and functions, and how long its tasks take, on a
// logarithmic scale. It has no script and loads nothing.
func SimulationSVG(r Simulation) []byte {
	bottom := float64(simulationHead + len(r.Scores)*simulationRow)
	height := int(bottom) + 56
	d := svg.New(simulationWidth, height, "Policies on "+Clean(r.Trace), simulationStyle)
	d.Rect("b", 0, 0, simulationWidth, float64(height), "")
	d.Text("t h", 16, 28, cut(Clean(r.Trace), 50)+": "+Count(r.Tasks, "task")+" in "+seconds(r.Seconds))
	d.Text("m", simulationCost, simulationHead-14, "cost: hosts, functions")
	d.Rect("host", simulationCost+130, simulationHead-24, 11, 11, "hosts")
	d.Rect("function", simulationCost+145, simulationHead-24, 11, 11, "functions")
	d.Text("m", simulationTime, simulationHead-14, "from arrival to end: p50, p95, p99")
	most, least, longest := 0.0, r.LimitSeconds, r.LimitSeconds
	for _, score := range r.Scores {
		most, least, longest = max(most, score.Cost.USD()), min(least, score.P50), max(longest, score.P99)
	}
	usd := (simulationUSD - simulationCost) / cmp.Or(most, 1)
	least, longest = least/1.5, longest*1.5
	at := func(value float64) float64 {
		return simulationTime + (simulationEnd-simulationTime)*math.Log(value/least)/math.Log(longest/least)
	}
	for tick := math.Pow(10, math.Ceil(math.Log10(least))); tick <= longest; tick *= 10 {
		d.Line("g", at(tick), simulationHead-6, at(tick), bottom, "")
		d.Text("m c", at(tick), bottom+14, seconds(tick))
	}
	limit := at(r.LimitSeconds)
	d.Line("l", limit, simulationHead-6, limit, bottom, "--slo "+seconds(r.LimitSeconds))
	for i, score := range r.Scores {
		y, name := float64(simulationHead+i*simulationRow), "t"
		if score.Best {
			name = "t k"
		}
		d.Text(name, 16, y+14, score.Policy)
		hosts, functions := score.HostCost.USD()*usd, score.FunctionCost.USD()*usd
		d.Rect("host", simulationCost, y, hosts, simulationBox, "hosts "+score.HostCost.String())
		d.Rect("function", simulationCost+hosts, y, functions, simulationBox, "functions "+score.FunctionCost.String())
		d.Text(name, simulationCost+hosts+functions+6, y+14, score.Cost.String())
		middle := y + simulationBox/2
		d.Line("s", at(score.P50), middle, at(score.P99), middle, "")
		d.Circle("p50", at(score.P50), middle, 5, "p50 "+seconds(score.P50))
		d.Circle("p95", at(score.P95), middle, 5, "p95 "+seconds(score.P95))
		d.Circle("p99", at(score.P99), middle, 5, "p99 "+seconds(score.P99))
		d.Text(name, simulationEnd+8, y+14, percent(score.Late)+" late")
	}
	d.Text("m", 16, float64(height-12), fmt.Sprintf(
		"%s at %s an hour; functions are %s; dashed: --slo %s; the best in bold", Clean(r.Host), r.HostPrice, r.Function,
		seconds(r.LimitSeconds)))
	return d.End()
}
