package engine_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// burstTasks are the tasks of a burst; each hashes burstHashes times 64 KiB, some ten milliseconds on a core.
	burstTasks, burstHashes = 2000, 300
	// burstClass is the memory of the functions that run a burst alone, in MB, and burstAtATime how many of them.
	burstClass, burstAtATime = 512, 16
)

// TestABurstIsMeasured has 2,000 tasks arrive at a stack at rest, whose pool and functions have a CPU each and nothing
// in common: at the pool alone, at functions alone, invoked one by one without an engine, and at both as the engine
// decides; one after the other, three times; and at last at both with functions killed at random. It tells how long
// each takes until the last task is done, what that costs, and how long after the burst the first function begins.
func TestABurstIsMeasured(t *testing.T) {
	needMeasure(t)
	cpus, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("the pool and functions need a CPU each")
	}
	pool, there := strconv.Itoa(cpus[0]), cpus[1]
	app := buildApp(t, 0)
	alone := startEngine(t, t.TempDir(), app, "--no-burst", "--pool-cpus", pool)
	both := startEngine(t, t.TempDir(), app, "--pool-cpus", pool, "--function-cpus", strconv.Itoa(there))
	stack, err := both.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	functions := newBareFunctions(t, app, there, stack.Functions)
	for _, e := range []*testEngine{alone, both} { // a past, so that it knows what a task takes
		succeed[fanResult](e, e.publish("fan", "past", fanInput{Shards: 200, Hashes: burstHashes}), patience).check(t, 200)
	}
	for round := range 3 {
		t.Logf("round %d, pool alone: %s", round, burst(t, alone, round, false))
		took, cost := functions.burst(t)
		t.Logf("round %d, functions alone: %.1f s, %s", round, took.Seconds(), cost)
		t.Logf("round %d, both: %s", round, burst(t, both, round, false))
	}
	t.Logf("both, with functions killed: %s", burst(t, both, 3, true))
}

// burst runs a burst at an engine and says what came of it.
func burst(t *testing.T, e *testEngine, round int, killing bool) string {
	t.Helper()
	began := time.Now()
	run := e.publish("fan", fmt.Sprint("burst-", round), fanInput{Shards: burstTasks, Hashes: burstHashes})
	var killed atomic.Int64
	ended := make(chan struct{})
	var killer sync.WaitGroup
	if killing {
		killer.Go(func() {
			random := rand.New(rand.NewPCG(uint64(round), 3))
			for {
				select {
				case <-ended:
					return
				case <-time.After(time.Duration(1000+random.IntN(2000)) * time.Millisecond):
					killed.Add(killFunction(e.state, random))
				}
			}
		})
	}
	result := succeed[fanResult](e, run, 30*time.Minute)
	close(ended)
	killer.Wait()
	result.check(t, burstTasks) // each task once
	view := e.wait(run, patience)
	said := fmt.Sprintf("%.1f s, %s, %d of %d tasks at functions", view.EndedAt.Sub(view.StartedAt).Seconds(),
		view.Totals.Cost, view.Totals.Tasks[predictor.Function], burstTasks)
	attempts, err := e.client.Attempts(t.Context(), web.AttemptQuery{Run: run})
	if err != nil {
		t.Fatal(err)
	}
	first := time.Time{}
	for _, a := range attempts {
		if at := a.AdmittedAt; a.Venue == predictor.Function && !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return said
	}
	return said + fmt.Sprintf("; %d functions killed, %d attempts; the first function began after %d ms", killed.Load(),
		view.Totals.Attempts, first.Sub(began).Milliseconds())
}

// killFunction kills a function of the engine, if there is one, and returns how many it killed.
func killFunction(state string, random *rand.Rand) int64 {
	found, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		panic(err) // a pattern of our own
	}
	var pids []int
	for _, exe := range found {
		target, err := os.Readlink(exe)
		if err != nil || !strings.HasPrefix(target, filepath.Join(state, "functions")+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe))); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 || syscall.Kill(pids[random.IntN(len(pids))], syscall.SIGKILL) != nil {
		return 0
	}
	return 1
}

// bareFunctions are functions without an engine.
type bareFunctions struct {
	invoker *awslambda.Invoker
	name    string
	venue   predictor.FunctionVenue
}

func newBareFunctions(t *testing.T, app string, cpu int, venue predictor.FunctionVenue) bareFunctions {
	t.Helper()
	const secret = "of the functions without an engine"
	host, err := function.New(function.Options{Dir: t.TempDir(), Secret: secret, CPUs: []int{cpu}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(host)
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	invoker, err := awslambda.New(t.Context(), awslambda.Options{
		Client: lambda.New(lambda.Options{
			Region: "us-east-1", BaseEndpoint: &server.URL, HTTPClient: server.Client(), Retryer: aws.NopRetryer{},
			Credentials: credentials.NewStaticCredentialsProvider(function.AccessKeyID, secret, ""),
		}),
		Environment: map[string]string{wire.ArtifactsEnvironment: artifact.URL(t.TempDir())},
	})
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(app)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	name, err := invoker.Ensure(t.Context(), awslambda.Build{
		App: "testapp", Digest: hex.EncodeToString(sum[:]),
		Path: app,
	}, burstClass)
	if err != nil {
		t.Fatal(err)
	}
	return bareFunctions{invoker, name, venue}
}

// burst invokes a function for each task.
func (f bareFunctions) burst(t *testing.T) (took time.Duration, cost quantity.Money) {
	t.Helper()
	began := time.Now()
	var next, spent atomic.Int64
	var callers sync.WaitGroup
	for range burstAtATime {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < burstTasks; i = next.Add(1) - 1 {
				payload, err := json.Marshal(wire.Invoke{Version: wire.Version, Start: wire.StartAttempt{
					Task: wire.Task{
						Version: wire.Version, Run: "r", ID: fmt.Sprint("work-", i),
						Stage: predictor.StageID{App: "testapp", Build: "b", Name: "work"},
					},
					Attempt: 1, Input: json.RawMessage(fmt.Sprintf(`{"index":%d,"hashes":%d}`, i, burstHashes)),
				}})
				if err != nil {
					t.Error(err)
					return
				}
				got, err := f.invoker.Invoke(t.Context(), f.name, payload)
				var answer wire.Answer
				if err == nil && got.FunctionError == "" {
					err = json.Unmarshal(got.Payload, &answer)
				}
				if err != nil || string(answer.Output) != strconv.FormatInt(i, 10) {
					t.Errorf("invoke %d: got %s, %v", i, got.Payload, err)
					return
				}
				spent.Add(int64(f.venue.Price(burstClass*quantity.MiB, got.Report.BilledDuration)))
			}
		})
	}
	callers.Wait()
	return time.Since(began), quantity.Money(spent.Load())
}
