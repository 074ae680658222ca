package awslambda_test

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
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
	var cold, warm []time.Duration
	for range 100 {
		once(`{"op":"exit"}`) // ends the environment
		cold = append(cold, once("{}"))
	}
	for range 5000 {
		warm = append(warm, once("{}"))
	}
	slices.Sort(cold)
	slices.Sort(warm)
	t.Logf("cold: p50 %v, p99 %v", cold[len(cold)/2], cold[len(cold)*99/100])
	t.Logf("warm: p50 %v, p99 %v", warm[len(warm)/2], warm[len(warm)*99/100])

	const callers, window = 16, 5 * time.Second
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
	t.Logf("%d callers: %.0f invokes a second", callers, float64(invokes.Load())/window.Seconds())
}
