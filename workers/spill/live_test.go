package spill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// TestMain makes the test binary the bootstrap of its own functions.
func TestMain(m *testing.M) {
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") != "" {
		store, err := artifact.FromURL(os.Getenv(wire.ArtifactsEnvironment))
		if err != nil {
			panic(err)
		}
		child.ServeFunction(context.Background(), child.NewStages([]runs.AnyStage{score, regress}), store,
			slog.New(slog.DiscardHandler))
		return
	}
	goleak.VerifyTestMain(m)
}

// shard is what a live task is asked: to work for a while, or to end as code may end.
type shard struct {
	Index        int    `json:"index"`
	Milliseconds int    `json:"milliseconds,omitempty"`
	Ends         string `json:"ends,omitempty"`
}

var errShard = errors.New("it never works")

var score = workflows.NewStage("score", func(ctx context.Context, in shard) (int, error) {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(time.Duration(in.Milliseconds) * time.Millisecond); time.Now().Before(end); {
	}
	_, _ = fmt.Println("printed by", in.Index)
	if attempt.Number > 1 {
		return in.Index, nil
	}
	switch in.Ends {
	case "error":
		return 0, errShard
	case "panic":
		panic("boom")
	case "crash":
		go panic("boom elsewhere")
		select {}
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return in.Index, nil
})

// live are functions of a local host, and what they billed.
type live struct {
	invoker *awslambda.Invoker
	dir     string // of the host
	build   awslambda.Build

	mu      sync.Mutex
	billed  quantity.Money
	invokes int
}

func (l *live) Ensure(ctx context.Context, _, _ string, memory quantity.Bytes) (string, error) {
	return l.invoker.Ensure(ctx, l.build, int(memory/quantity.MiB))
}

func (l *live) EnsureCommands(context.Context, string, quantity.Bytes) (string, error) {
	return "", errors.New("no commands here")
}

func (l *live) Invoke(ctx context.Context, name string, payload []byte) (activities.FunctionAnswer, error) {
	answer, err := l.invoker.Invoke(ctx, name, payload)
	if err != nil {
		return activities.FunctionAnswer{}, err
	}
	memory := quantity.Bytes(answer.Report.MemorySizeMB) * quantity.MiB
	l.mu.Lock()
	defer l.mu.Unlock()
	l.invokes++
	l.billed += venue.Price(memory, answer.Report.BilledDuration)
	return activities.FunctionAnswer{
		Payload: answer.Payload, Error: answer.FunctionError, Log: answer.LogTail, ErrorType: answer.Report.ErrorType,
		Init: answer.Report.InitDuration, Duration: answer.Report.Duration, Billed: answer.Report.BilledDuration,
		Memory: memory, PeakMemory: quantity.Bytes(answer.Report.MaxMemoryMB) * quantity.MiB,
	}, nil
}

// startLive starts a worker of a local function host; plan is in force when it returns.
func startLive(t *testing.T, plan predictor.Plan, change ...func(*awslambda.Options)) (*stack, *live) {
	t.Helper()
	const secret = "of the functions of this test"
	dir := t.TempDir()
	host, err := function.New(function.Options{Dir: dir, Secret: secret})
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
	options := awslambda.Options{
		Client: lambda.New(lambda.Options{
			Region: "us-east-1", BaseEndpoint: &server.URL, Retryer: aws.NopRetryer{}, HTTPClient: server.Client(),
			Credentials: credentials.NewStaticCredentialsProvider(function.AccessKeyID, secret, ""),
		}, lambda.WithAPIOptions(v4.AddContentSHA256HeaderMiddleware)),
		Environment: map[string]string{wire.ArtifactsEnvironment: artifact.URL(t.TempDir())},
	}
	for _, one := range change {
		one(&options)
	}
	invoker, err := awslambda.New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := []byte("#!/bin/sh\nexec '" + program + "'\n")
	path, sum := filepath.Join(t.TempDir(), "binary"), sha256.Sum256(script)
	if err := os.WriteFile(path, script, 0o600); err != nil {
		t.Fatal(err)
	}
	l := &live{
		invoker: invoker, dir: dir,
		build: awslambda.Build{App: "digits", Digest: "sha256:" + hex.EncodeToString(sum[:]), Path: path},
	}
	s := start(t, nil, func(o *Options) { o.Functions, o.Local = l, true })
	s.obeys(plan)
	return s, l
}

// obeys has the worker take over a plan: the first is obeyed when the second is taken.
func (s *stack) obeys(plan predictor.Plan) {
	s.plans <- plan
	s.plans <- plan
}

// sharing is a plan of so many invokes at a time that carry so many tasks each.
func sharing(slots int, batch predictor.Batch) predictor.Plan {
	plan := grant(slots)
	plan.Grants[0].Batch = batch
	return plan
}

// run has all tasks done and returns their results, and of those that failed an error.
func (s *stack) run(t *testing.T, name string, shards []shard) (results []wire.Result, errs []error) {
	t.Helper()
	submitted := make([]*slottest.Activity, len(shards))
	for i, in := range shards {
		one := task(name + "-" + strconv.Itoa(i))
		one.MaxAttempts = 50 // who is killed again and again is done at last
		submitted[i] = s.frontend.Submit(t, stage.Queue(), one, in)
	}
	for _, a := range submitted {
		result, err := a.Wait(t)
		results, errs = append(results, result), append(errs, err)
	}
	return results, errs
}

// settled returns the sum of all Records and of all that was billed; they are told apart by no other attempt's.
func (s *stack) settled(l *live) (recorded, billed quantity.Money) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, record := range s.records {
		recorded += record.Cost
	}
	return recorded, l.billed
}

// TestTasksThatEndBadlyTakeNoOtherWithThem runs them beside others in real environments: each ends as it does alone,
// and the bill is the sum of their Records.
func TestTasksThatEndBadlyTakeNoOtherWithThem(t *testing.T) {
	t.Parallel()
	s, l := startLive(t, sharing(1, predictor.Batch{Tasks: 8, Wait: 2 * time.Second}))
	shards := make([]shard, 16)
	for i := range shards {
		shards[i] = shard{Index: i, Milliseconds: 2}
	}
	shards[2].Ends, shards[4].Ends, shards[6].Ends, shards[11].Ends = "error", "panic", "crash", "killed"
	results, errs := s.run(t, "score", shards)
	for i, err := range errs {
		if err != nil || string(results[i].Output) != strconv.Itoa(i) {
			t.Errorf("task %d: got %s, %v; want it done at last", i, results[i].Output, err)
		}
	}
	if recorded, billed := s.settled(l); recorded != billed {
		t.Errorf("the Records come to %d, want the %d that was billed", recorded, billed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := map[string]map[predictor.Outcome]int{}
	for _, record := range s.records {
		if ended[record.Task] == nil {
			ended[record.Task] = map[predictor.Outcome]int{}
		}
		ended[record.Task][record.Outcome]++
	}
	for i, in := range shards {
		found := ended["score-"+strconv.Itoa(i)]
		failed, lost := found[predictor.Failed], found[predictor.Lost] // lost with one behind it, and then alone
		if found[predictor.Succeeded] != 1 || lost > 1 || in.Ends == "" && failed > 0 || in.Ends != "" && failed+lost != 1 {
			t.Errorf("task %d, %q: got %v, want it done once, and otherwise failed or lost once", i, in.Ends, found)
		}
	}
}

// TestEveryTaskIsDoneOnceWithFunctionsKilledAtRandom kills environments while tasks share their invokes. Each task is
// in the result once, each attempt in a Record, and their sum is what was billed.
func TestEveryTaskIsDoneOnceWithFunctionsKilledAtRandom(t *testing.T) {
	t.Parallel()
	s, l := startLive(t, sharing(2, predictor.Batch{Tasks: 8, Wait: 30 * time.Millisecond}))
	shards := make([]shard, 300)
	for i := range shards {
		shards[i] = shard{Index: i, Milliseconds: 4}
	}
	ended := make(chan struct{})
	killed := 0
	var killer sync.WaitGroup
	killer.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Duration(20+random.IntN(120)) * time.Millisecond):
				killed += killOne(l.dir, random)
			}
		}
	})
	results, errs := s.run(t, "score", shards)
	close(ended)
	killer.Wait()
	for i, err := range errs {
		if err != nil || string(results[i].Output) != strconv.Itoa(i) {
			t.Errorf("task %d: got %s, %v", i, results[i].Output, err)
		}
	}
	recorded, billed := s.settled(l)
	if recorded != billed {
		t.Errorf("the Records come to %d, want the %d that was billed", recorded, billed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	attempts, done, shared := map[string]bool{}, map[string]int{}, 0
	for _, record := range s.records {
		attempts[fmt.Sprint(record.Task, "/", record.Attempt)] = true
		if record.Outcome == predictor.Succeeded {
			done[record.Task]++
		}
		shared = max(shared, record.Batch)
	}
	for task, times := range done {
		if times != 1 {
			t.Errorf("%s has succeeded %d times", task, times)
		}
	}
	if len(attempts) != len(s.records) || len(done) != len(shards) || shared < 2 {
		t.Errorf("%d Records of %d attempts of %d tasks, up to %d with an invoke", len(s.records), len(attempts), len(done),
			shared)
	}
	t.Logf("%d tasks, %d attempts in %d invokes, %d environments killed", len(shards), len(attempts), l.invokes, killed)
}

// killOne kills an environment of the host with this directory, if there is one, and returns how many it killed.
func killOne(dir string, random *rand.Rand) int {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	var pids []int
	for _, path := range found {
		environment, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(environment), dir) {
			continue // it has ended, or is another's
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 || syscall.Kill(pids[random.IntN(len(pids))], syscall.SIGKILL) != nil {
		return 0
	}
	return 1
}

// TestBatchesAreMeasured tells how many tasks of 5, 50 and 500 ms two invokes at a time get through in a second, and
// what a million of them cost: one an invoke, and as many as are chosen for a backlog of 2,000 where an hour is worth a
// dollar, and where only cost counts; one after the other, several times.
func TestBatchesAreMeasured(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("a measurement; set SPILLWAY_MEASURE")
	}
	const slots, rounds = 2, 5
	for _, of := range []struct{ milliseconds, tasks int }{{5, 600}, {50, 120}, {500, 16}} {
		choice := func(value quantity.Money) predictor.Batch {
			wall := float64(of.milliseconds) / 1000
			batch, reason := spill.Parcel{
				Offer: spill.Offer{
					Tasks: 2000, Slots: 1, Wall: wall, Function: wall, Highest: 2 * wall, Class: 512 * quantity.MiB, Venue: venue,
				},
				Chosen: slots, Value: value, Slack: math.Inf(1), InFlight: 500,
			}.Batch()
			t.Logf("%d ms, %s an hour: %+v: %s", of.milliseconds, value, batch, reason)
			return batch
		}
		batches := []predictor.Batch{{}, choice(quantity.USD), choice(0)}
		rates, prices := make([][]float64, len(batches)), make([][]float64, len(batches))
		s, l := startLive(t, grant(slots))
		shards := make([]shard, of.tasks)
		for i := range shards {
			shards[i] = shard{Index: i, Milliseconds: of.milliseconds}
		}
		s.run(t, "warm", shards[:8])
		for round := range rounds {
			for i, batch := range batches {
				s.obeys(sharing(slots, batch))
				_, before := s.settled(l)
				began := time.Now()
				_, errs := s.run(t, fmt.Sprint("score-", round, "-", i), shards)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				_, after := s.settled(l)
				rates[i] = append(rates[i], float64(of.tasks)/took.Seconds())
				prices[i] = append(prices[i], (after-before).USD()/float64(of.tasks)*1e6)
			}
		}
		for i, batch := range batches {
			slices.Sort(rates[i])
			slices.Sort(prices[i])
			rate, price := rates[i][rounds/2], prices[i][rounds/2]
			t.Logf("%d ms, %d an invoke: %.1f tasks/s (%.2fx), $%.3f a million (%.2fx)", of.milliseconds, batch.Most(),
				rate, rate/rates[0][rounds/2], price, price/prices[0][rounds/2])
		}
		s.stop()
	}
}
