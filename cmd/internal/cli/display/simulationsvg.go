package display

import (
	"cmp"
	"fmt"

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
.host,.p50{fill:#3b82c4}.function,.p99{fill:#b35f00}
.p95{fill:#7d6b00}.l{stroke:#cf222e;stroke-dasharray:3 2}
text{font:12px system-ui,sans-serif}.h{font-size:15px;font-weight:600}.k{font-weight:600}
@media (prefers-color-scheme:dark){.b{fill:#0d1117}.t{fill:#e6edf3}.m{fill:#9aa4af}}
`

// SimulationSVG returns a picture of what each policy costs, hosts and functions, and how long its tasks take. It has
// no script and loads nothing.
func SimulationSVG(r Simulation) []byte {
	height := simulationHead + len(r.Scores)*simulationRow + 40
	d := svg.New(simulationWidth, height, "Policies on "+Clean(r.Trace), simulationStyle)
	d.Rect("b", 0, 0, simulationWidth, float64(height), "")
	d.Text("t h", 16, 28, cut(Clean(r.Trace), 50)+": "+Count(r.Tasks, "task")+" in "+seconds(r.Seconds))
	d.Text("m", 16, 50,
		"costs: hosts (left), functions (right); times from arrival to end: p50, p95, p99; the line is --slo")
	most, longest := 0.0, r.LimitSeconds
	for _, score := range r.Scores {
		most, longest = max(most, score.Cost.USD()), max(longest, score.P99)
	}
	usd, time := (simulationUSD-simulationCost)/cmp.Or(most, 1), (simulationEnd-simulationTime)/cmp.Or(longest, 1)
	for i, score := range r.Scores {
		y := float64(simulationHead + i*simulationRow)
		name := "t"
		if score.Best {
			name = "t k"
		}
		d.Text(name, 16, y+14, score.Policy)
		hosts, functions := score.HostCost.USD()*usd, score.FunctionCost.USD()*usd
		d.Rect("host", simulationCost, y, hosts, simulationBox, "hosts "+score.HostCost.String())
		d.Rect("function", simulationCost+hosts, y, functions, simulationBox, "functions "+score.FunctionCost.String())
		d.Text(name, simulationCost+hosts+functions+6, y+14, score.Cost.String())
		for n, of := range []struct {
			name  string
			value float64
		}{{"p50", score.P50}, {"p95", score.P95}, {"p99", score.P99}} {
			d.Rect(of.name, simulationTime, y+float64(n*6), of.value*time, 6, of.name+" "+seconds(of.value))
		}
		d.Text(name, simulationEnd+8, y+14, fmt.Sprintf("%s, %s late", seconds(score.P99), percent(score.Late)))
	}
	limit := simulationTime + r.LimitSeconds*time
	d.Line("l", limit, simulationHead-8, limit, float64(height-32), "--slo "+seconds(r.LimitSeconds))
	d.Text("m", 16, float64(height-12), fmt.Sprintf("%s at %s an hour; functions are %s", Clean(r.Host), r.HostPrice,
		r.Function))
	return d.End()
}
