package size_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

func TestTheShareOfACoreByTheRatesThatAreKnown(t *testing.T) {
	t.Parallel()
	const core = quantity.Core
	rates := func(values ...float64) usage.Series { return usage.Series{Values: values} }
	for _, row := range []struct {
		name  string
		known size.CPU
		want  quantity.Milli
	}{
		{"too few rates", size.CPU{Rates: rates(300, 300)}, 400},
		{"but held back", size.CPU{Rates: rates(300, 300), Starved: 300}, 600},
		{"steps of 50", size.CPU{Rates: rates(310, 310, 310, 310, 310)}, 350},
		{"double of what held back", size.CPU{Rates: rates(310, 310, 310, 310, 310), Starved: 300}, 600},
		{"nearly a core is one", size.CPU{Rates: rates(860, 860, 860, 860, 860)}, core},
		{"and a little more", size.CPU{Rates: rates(1040, 1040, 1040, 1040, 1040)}, core},
		{"neighbours kept it waiting", size.CPU{Rates: nineAndOne(600, 990)}, core},
		{"never above the host", size.CPU{Rates: rates(9000, 9000, 9000, 9000, 9000)}, 4 * core},
		{"never nothing", size.CPU{Rates: rates(1, 1, 1, 1, 1)}, size.LeastCPU},
		{"short tasks share a core", size.CPU{Rates: rates(1000, 1000, 1000, 1000, 1000), Busy: 0.5}, 500},
		{"a bit longer ones do not", size.CPU{Rates: rates(1000, 1000, 1000, 1000, 1000), Busy: 0.75}, core},
		{"unless they do", size.CPU{Rates: rates(1000, 1000, 1000, 1000, 1000), Busy: 0.75, Held: 500}, 750},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.known.Most = 4 * core
			if row.known.Busy == 0 {
				row.known.Busy = 1
			}
			if got := row.known.Share(400); got != row.want {
				t.Errorf("%+v: got %s cores, want %s", row.known, got, row.want)
			}
		})
	}
}

// nineAndOne is a rate nine times and another once.
func nineAndOne(often, once float64) usage.Series {
	series := usage.Series{Values: []float64{once}}
	for range 9 {
		series.Values = append(series.Values, often)
	}
	return series
}
