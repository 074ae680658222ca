package engine_test

import (
	"bufio"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// randomRuns starts runs of all kinds, some of which fail or are cancelled, and waits for them.
func (e *testEngine) randomRuns(count int, seed uint64) (views []ledger.RunView) {
	e.t.Helper()
	r := rand.New(rand.NewPCG(seed, 11))
	var runs []string
	for n := range count {
		id := fmt.Sprintf("x%d", n)
		switch r.IntN(6) {
		case 0:
			runs = append(runs, e.publish("count", id, map[string]int{"steps": 1 + r.IntN(20), "milliseconds": 1 + r.IntN(10)}))
		case 1:
			runs = append(runs, e.publish("fail", id, map[string]int{"index": n}))
		case 2:
			runs = append(runs, e.publish("boom", id, map[string]int{"index": n}))
		case 3:
			runs = append(runs, e.publish("echo", id, map[string]int{"index": n}))
		default:
			runs = append(runs, e.publish("fan", id, map[string]int{"shards": 1 + r.IntN(12), "milliseconds": 1 + r.IntN(60)}))
		}
		if r.IntN(10) == 0 {
			_ = e.client.Cancel(e.t.Context(), runs[n]) // it may not have begun, or have ended
		}
		time.Sleep(time.Duration(r.IntN(80)) * time.Millisecond)
	}
	for _, run := range runs {
		views = append(views, e.wait(run, patience))
	}
	return views
}

// logged is what the host and the functions wrote down by themselves.
type logged struct {
	held     map[string]*big.Int // picodollars that each run's attempts held at the host
	function *big.Int            // of all invokes
	invokes  int
}

var field = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S+)`)

// readLog adds up the engine's log: what the agent says was held, by whom and for how long, and what the function host
// billed.
func readLog(t *testing.T, state string, host predictor.Host, functions predictor.FunctionVenue) logged {
	t.Helper()
	file, err := os.Open(filepath.Join(state, "spillway.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	account := logged{held: map[string]*big.Int{}, function: new(big.Int)}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := map[string]string{}
		for _, found := range field.FindAllStringSubmatch(lines.Text(), -1) {
			fields[found[1]] = strings.Trim(found[2], `"`)
		}
		number := func(name string) int64 {
			n, err := strconv.ParseInt(fields[name], 10, 64)
			if err != nil {
				t.Fatalf("%s of %s: %v", name, lines.Text(), err)
			}
			return n
		}
		switch fields["msg"] {
		case "held":
			share := big.NewRat(number("cpu_milli"), int64(host.Capacity.CPU))
			if memory := big.NewRat(number("memory_bytes"), int64(host.Capacity.Memory)); memory.Cmp(share) > 0 {
				share = memory
			}
			cost := share.Mul(share, big.NewRat(int64(host.PricePerHour), 1))
			cost.Mul(cost, big.NewRat(number("held_ns"), int64(time.Hour)))
			run := fields["run"]
			if account.held[run] == nil {
				account.held[run] = new(big.Int)
			}
			account.held[run].Add(account.held[run], rounded(cost))
		case "invocation ended":
			cost := big.NewRat(number("memory_mb"), 1024)
			cost.Mul(cost, big.NewRat(number("billed_ms"), 1000)).Mul(cost, big.NewRat(int64(functions.PerGiBSecond), 1))
			account.function.Add(account.function, rounded(cost)).Add(account.function, big.NewInt(int64(functions.PerRequest)))
			account.invokes++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return account
}

// rounded is the nearest integer, half up.
func rounded(of *big.Rat) *big.Int {
	doubled := new(big.Int).Lsh(of.Num(), 1)
	doubled.Add(doubled, of.Denom())
	return doubled.Div(doubled, new(big.Int).Lsh(of.Denom(), 1))
}

// TestTheLedgerAgreesWithTheHostsOwnLog compares, to the picodollar, what runs cost with what the host wrote down of
// its own accord. It makes a hundred runs when it measures, and a few otherwise.
func TestTheLedgerAgreesWithTheHostsOwnLog(t *testing.T) {
	t.Parallel()
	count := 12
	if os.Getenv("SPILLWAY_MEASURE") != "" {
		count = 100
	}
	state := t.TempDir()
	e := startEngine(t, state, buildApp(t, 0), "--log-level", "debug", "--value-of-time", "1000")
	views := e.randomRuns(count, 42)
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bill, err := e.client.Cost(t.Context(), ledger.BillQuery{By: ledger.ByVenue})
	if err != nil {
		t.Fatal(err)
	}
	byRun, err := e.client.Cost(t.Context(), ledger.BillQuery{By: ledger.ByRun})
	if err != nil {
		t.Fatal(err)
	}
	e.stop()
	host := stack.Hosts[0]
	account := readLog(t, state, host, stack.Functions)
	pool, attempts := new(big.Int), 0
	lines := map[string]ledger.Line{}
	for _, line := range byRun.Lines {
		lines[line.Name] = line
	}
	for _, view := range views {
		want := account.held[view.Run]
		if want == nil {
			want = new(big.Int)
		}
		pool.Add(pool, want)
		attempts += view.Totals.Attempts
		if got := lines[view.Run].Pool; want.Cmp(big.NewInt(int64(got))) != 0 {
			t.Errorf("run %s (%s): the ledger has %d picodollars at the pool, the host held for %s", view.Run, view.State, got,
				want)
		}
		if line := lines[view.Run]; line.Pool+line.Function != view.Totals.Cost {
			t.Errorf("run %s: the bill has %s and %s, the run %s", view.Run, line.Pool, line.Function, view.Totals.Cost)
		}
	}
	if pool.Cmp(big.NewInt(int64(bill.Pool))) != 0 || account.function.Cmp(big.NewInt(int64(bill.Function))) != 0 {
		t.Errorf("all: the ledger has %d and %d picodollars at pool and functions, the logs %s and %s", bill.Pool,
			bill.Function, pool, account.function)
	}
	var sum quantity.Money
	for _, line := range bill.Lines {
		sum += line.Total
	}
	if sum != bill.Total || bill.Attempts+bill.Idle != bill.Total {
		t.Errorf("the bill does not add up: %+v", bill)
	}
	t.Logf("%d runs, %d attempts, %d invokes: %s at the pool, %s at functions, %s idle: equal to the last picodollar",
		count, attempts, account.invokes, bill.Pool, bill.Function, bill.Idle)
}

// TestWhereTheTimeGoes tells where the time of runs goes, and how much of it nothing explains.
func TestWhereTheTimeGoes(t *testing.T) {
	needMeasure(t)
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst")
	var all timeline.Breakdown
	worst := 0.0
	add := func(b timeline.Breakdown) {
		for _, row := range []struct{ to, of *time.Duration }{
			{&all.Wall, &b.Wall},
			{&all.Broker, &b.Broker},
			{&all.Engine, &b.Engine},
			{&all.Queue, &b.Queue},
			{&all.Start, &b.Start},
			{&all.Fetch, &b.Fetch},
			{&all.Compute, &b.Compute},
			{&all.Publish, &b.Publish},
			{&all.Unattributed, &b.Unattributed},
		} {
			*row.to += *row.of
		}
		worst = max(worst, float64(b.Unattributed)/float64(b.Wall))
	}
	for _, view := range e.randomRuns(100, 7) {
		b, err := e.client.Breakdown(t.Context(), view.Run)
		if err != nil {
			t.Fatal(err)
		}
		add(b)
	}
	t.Log("100 runs of all kinds: " + shares(all) + fmt.Sprintf(", the worst run %.2f%% unattributed", 100*worst))

	// A pipeline of one stage that computes for 50 ms, at 60% of one core: an event every 83 ms, at random as they come in
	// life.
	all, worst = timeline.Breakdown{}, 0
	r := rand.New(rand.NewPCG(5, 6))
	var runs []string
	for n := range 200 {
		published, err := e.client.Publish(t.Context(),
			web.Event{Pipeline: "count", ID: fmt.Sprintf("l%d", n), Input: []byte(`{"steps":1,"milliseconds":50}`)})
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, published.Run)
		time.Sleep(time.Duration(r.ExpFloat64() * float64(50*time.Millisecond) / 0.6))
	}
	for _, run := range runs {
		e.wait(run, patience)
		b, err := e.client.Breakdown(t.Context(), run)
		if err != nil {
			t.Fatal(err)
		}
		add(b)
	}
	t.Logf("200 runs of one 50 ms stage at 60%% load, %s each: %s, the worst run %.2f%% unattributed",
		(all.Wall / 200).Round(time.Millisecond), shares(all), 100*worst)
}

// shares writes the rows of a breakdown in percent of its wall.
func shares(b timeline.Breakdown) string {
	share := func(d time.Duration) float64 { return 100 * float64(d) / float64(b.Wall) }
	return fmt.Sprintf("broker %.2f%%, engine %.2f%%, queue %.2f%%, start %.2f%%, fetch %.2f%%, compute %.2f%%, publish "+
		"%.2f%%, unattributed %.3f%%",
		share(b.Broker), share(b.Engine), share(b.Queue), share(b.Start), share(b.Fetch), share(b.Compute), share(b.Publish),
		share(b.Unattributed))
}
