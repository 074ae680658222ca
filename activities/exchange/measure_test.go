package exchange_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// delayed is a board at a distance: every request takes the latency, and the time of its bytes.
type delayed struct {
	activities.Board

	latency time.Duration
	perByte time.Duration
}

func (d delayed) travel(ctx context.Context, bytes int) error {
	if !wait.For(ctx, d.latency+time.Duration(bytes)*d.perByte) {
		return context.Cause(ctx)
	}
	return nil
}

func (d delayed) Post(ctx context.Context, group, name string, data []byte) (bool, error) {
	if err := d.travel(ctx, len(data)); err != nil {
		return false, err
	}
	return d.Board.Post(ctx, group, name, data)
}

func (d delayed) Look(ctx context.Context, group, name string) ([]byte, error) {
	data, err := d.Board.Look(ctx, group, name)
	return data, errors.Join(err, d.travel(ctx, len(data)))
}

// Mean is that of a parameter server at a distance.
func (d delayed) Mean(
	ctx context.Context, group string, names []string, patience time.Duration,
) (exchange.Vector, []int, error) {
	server, _ := d.Board.(exchange.Averager)
	sum, missing, err := server.Mean(ctx, group, names, patience)
	return sum, missing, errors.Join(err, d.travel(ctx, 4*len(sum.Values)))
}

// computes is a model of so many parameters, of which a round takes a time of one core: the computing is a wait, since
// the cores of this machine cannot be divided among workers; what is exchanged is real.
type computes struct {
	values  []float32
	compute time.Duration
	ended   []time.Time
}

func (m *computes) Part(ctx context.Context, _, part, parts int) (exchange.Vector, error) {
	if !wait.For(ctx, m.compute/time.Duration(parts)) {
		return exchange.Vector{}, context.Cause(ctx)
	}
	own := make([]float32, len(m.values))
	for i := range own {
		own[i] = m.values[i] + float32(part)
	}
	return exchange.Vector{Weight: 1, Values: own}, nil
}

func (m *computes) Apply(_ context.Context, _ int, mean exchange.Vector) error {
	m.values = mean.Values
	m.ended = append(m.ended, time.Now())
	return nil
}

func (*computes) MarshalBinary() ([]byte, error) { return nil, nil }

func (*computes) UnmarshalBinary([]byte) error { return nil }

// served returns a parameter server behind HTTP.
func served(t *testing.T) exchange.Remote {
	t.Helper()
	server := httptest.NewServer(exchange.Handler(&exchange.Memory{}))
	t.Cleanup(server.Close)
	return exchange.Remote{Ask: func(
		ctx context.Context, method, path string, body io.Reader,
	) (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, method, server.URL+"/"+path, body)
		if err != nil {
			return nil, err
		}
		answer, err := server.Client().Do(request)
		if err != nil || answer.StatusCode < 300 {
			return answer, err
		}
		err = fmt.Errorf("the server answers %s", answer.Status)
		if answer.StatusCode == http.StatusNotFound {
			err = fmt.Errorf("%w: %w", err, activities.ErrMissing)
		}
		return nil, errors.Join(err, answer.Body.Close())
	}}
}

// TestMeasureEpochs compares how long an epoch takes with what LambdaML's model says, over workers, sizes and channels.
func TestMeasureEpochs(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("set SPILLWAY_MEASURE=1 to measure: five minutes")
	}
	const (
		epochs, rounds = 3, 3
		latency        = 80 * time.Millisecond
		perByte        = time.Second / 20e6 // 20 MB/s
		compute        = 4 * time.Second
	)
	patterns := map[exchange.Pattern]venue.Pattern{
		exchange.ScatterReduce: venue.ScatterReduce, exchange.AllGather: venue.AllGather,
		exchange.ParameterServer: venue.ParameterServer,
	}
	worst, sum, count := 0.0, 0.0, 0
	t.Logf("%-8s %-17s %9s %10s %10s %7s", "workers", "channel", "model", "predicted", "measured", "error")
	for _, workers := range []int{1, 2, 4} {
		for _, pattern := range exchange.Patterns() {
			if workers == 1 && pattern != exchange.AllGather {
				continue // nothing is exchanged
			}
			for _, size := range []int{40_000, 400_000, 2_000_000} {
				files := openFiles(t)
				on := activities.Board(files)
				if pattern == exchange.ParameterServer {
					on = served(t)
				}
				models := make([]*computes, workers)
				var all sync.WaitGroup
				for i := range workers {
					models[i] = &computes{values: make([]float32, size/4), compute: compute}
					all.Go(func() {
						ctx, _ := attemptOf(t.Context(), files)
						if _, err := exchange.Train(ctx, exchange.Job{
							Board: delayed{on, latency, perByte}, Group: "group", Worker: i, Workers: workers, Rounds: epochs*rounds + 1,
							Pattern: pattern, Patience: time.Minute,
						}, models[i]); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				took := make([]time.Duration, epochs) // the first round begins when its workers do
				for epoch := range took {
					for _, m := range models {
						took[epoch] = max(took[epoch], m.ended[(epoch+1)*rounds].Sub(m.ended[epoch*rounds]))
					}
				}
				slices.Sort(took)
				measured := took[epochs/2]
				work := venue.Work{Model: quantity.Bytes(size), Rounds: rounds, Compute: compute, MostCores: 1}
				channel := venue.Channel{
					Pattern: patterns[pattern], BytesPerSecond: 1 / perByte.Seconds(), Latency: latency,
				}
				if workers == 1 {
					channel = venue.Channel{BytesPerSecond: math.Inf(1)}
				}
				predicted, _ := work.InFunctions(venue.Functions{MaxDuration: time.Hour}, 1769*quantity.MiB,
					venue.Ways{Store: venue.Channel{BytesPerSecond: math.Inf(1)}}, channel, workers)
				wrong := math.Abs(measured.Seconds()-predicted.Time.Seconds()) / measured.Seconds()
				worst, sum, count = max(worst, wrong), sum+wrong, count+1
				t.Logf("%-8d %-17s %6d kB %8.2f s %8.2f s %6.1f%%", workers, pattern, size/1000, predicted.Time.Seconds(),
					measured.Seconds(), 100*wrong)
			}
		}
	}
	t.Logf("%d cases: mean error %.1f%%, worst %.1f%%", count, 100*sum/float64(count), 100*worst)
}
