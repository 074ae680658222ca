package awslambda_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
)

// TestInvokesAreMeasured tells how long invokes of a function take that does nothing, by the SDK's client as the engine
// has it: cold, warm, and how many of them 16 callers get through in a second. The goals are 0.5 ms for the median of
// warm ones, and 5,000 a second.
func TestInvokesAreMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("a measurement; set SPILLWAY_MEASURE")
	}
	_, c := host(t, function.Options{})
	c = lambda.New(c.Options(), lambda.WithAPIOptions(v4.AddContentSHA256HeaderMiddleware), func(o *lambda.Options) {
		o.Retryer = aws.NopRetryer{}
	})
	iv := invoker(t, awslambda.Options{Client: c})
	name := ensure(t, iv, build(t), 1769)
	once := func(payload string) time.Duration {
		started := time.Now()
		if a, err := iv.Invoke(t.Context(), name, []byte(payload)); err != nil || a.FunctionError != "" && payload == "{}" {
			t.Fatal(a, err)
		}
		return time.Since(started)
	}
	var cold []time.Duration
	for range 100 {
		once(`{"op":"exit"}`) // ends the environment
		cold = append(cold, once("{}"))
	}
	slices.Sort(cold)
	t.Logf("cold: p50 %v, p99 %v", cold[len(cold)/2], cold[len(cold)*99/100])

	const windows, callers, window = 20, 16, 500 * time.Millisecond
	var middles, tails, burnt []time.Duration
	var rates []float64
	for range windows { // one and the other, so that what else the machine does meets both
		var warm []time.Duration
		for range 250 {
			warm = append(warm, once("{}"))
		}
		slices.Sort(warm)
		middles, tails = append(middles, warm[len(warm)/2]), append(tails, warm[len(warm)*99/100])

		before := processTime(t)
		var invokes atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(window)
		for range callers {
			wg.Go(func() {
				for time.Now().Before(end) {
					if a, err := iv.Invoke(t.Context(), name, []byte("{}")); err != nil || a.FunctionError != "" {
						t.Error(a, err)
						return
					}
					invokes.Add(1)
				}
			})
		}
		wg.Wait()
		rates = append(rates, float64(invokes.Load())/window.Seconds())
		burnt = append(burnt, (processTime(t)-before)/time.Duration(max(invokes.Load(), 1)))
	}
	slices.Sort(middles)
	slices.Sort(tails)
	slices.Sort(rates)
	slices.Sort(burnt)
	load, _ := os.ReadFile("/proc/loadavg") // says how busy the machine was
	t.Logf("%d windows, load %s", windows, strings.TrimSpace(string(load)))
	t.Logf("warm, p50 of 250: median %v, best %v; p99: median %v, best %v", middles[windows/2], middles[0],
		tails[windows/2], tails[0])
	t.Logf("%d callers: median %.0f invokes a second, best %.0f; of a CPU the client and the host take %v for each, at "+
		"best %v", callers, rates[windows/2], rates[windows-1], burnt[windows/2], burnt[0])
}

// processTime is for how long this process has had a CPU: other work of the machine changes it little.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var taken syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &taken); err != nil {
		t.Fatal(err)
	}
	return time.Duration(taken.Utime.Nano() + taken.Stime.Nano())
}
