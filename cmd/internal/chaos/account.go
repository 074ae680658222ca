package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// account is what the hosts wrote into their own log, over all lives of the engine.
type account struct {
	attempts map[string]*held  // by run, task and number
	invokes  map[string][]held // of functions, by cost: their log does not name the attempt
	count    int               // of invokes
	whole    *big.Int          // what the whole host costs over all lives: more than any attempt of the pool
	venue    predictor.FunctionVenue
}

// held is what one attempt or invoke cost, in picodollars, and whether the engine was killed before its Record was sure
// to be kept. Whole is false of an attempt whose host was killed while it held something: a line is written when the
// grant changes, and one at the end.
type held struct {
	cost  *big.Int
	late  bool
	whole bool
}

// grace is how long before a kill an attempt may have ended whose Record was not kept: it is lost with the engine, and
// the attempt made again.
const grace = 3 * time.Second

// span is a piece of time.
type span struct{ began, ended time.Time }

// late says whether what ended at this time may be in no Record, because the engine was killed soon after, or soon
// after the disk had room again.
func (l life) late(at time.Time, full []span) bool {
	for _, f := range full {
		if !at.Before(f.began) && l.ended.Before(f.ended.Add(grace)) {
			return true
		}
	}
	return l.ended.Sub(at) < grace
}

var field = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S+)`)

// readLogs adds up the logs of all lives.
func readLogs(lives []life, full []span, host predictor.Host, functions predictor.FunctionVenue) (account, error) {
	a := account{attempts: map[string]*held{}, invokes: map[string][]held{}, venue: functions}
	var lived time.Duration
	for _, l := range lives {
		lived += l.ended.Sub(l.began)
		file, err := os.Open(l.log)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was killed before it wrote a line
		}
		if err != nil {
			return a, fmt.Errorf("read the log of a life: %w", err)
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			a.add(lines.Text(), func(at time.Time) bool { return l.late(at, full) }, host, functions)
		}
		if err := errors.Join(lines.Err(), file.Close()); err != nil {
			return a, fmt.Errorf("read the log of a life: %w", err)
		}
	}
	whole := big.NewRat(int64(lived), int64(time.Hour))
	a.whole = rounded(whole.Mul(whole, big.NewRat(int64(host.PricePerHour), 1)))
	return a, nil
}

// add takes one line; the last of a killed engine may be cut.
func (a *account) add(
	line string, isLate func(time.Time) bool, host predictor.Host, functions predictor.FunctionVenue,
) {
	isHeld := strings.Contains(line, `msg=held `)
	if !isHeld && !strings.Contains(line, `msg="invocation ended"`) {
		return
	}
	fields := map[string]string{}
	for _, found := range field.FindAllStringSubmatch(line, -1) {
		fields[found[1]] = strings.Trim(found[2], `"`)
	}
	whole := true
	number := func(name string) int64 {
		n, err := strconv.ParseInt(fields[name], 10, 64)
		whole = whole && err == nil
		return n
	}
	at, err := time.Parse(time.RFC3339Nano, fields["time"])
	late := err != nil || isLate(at)
	if !isHeld {
		cost := big.NewRat(number("memory_mb"), 1024)
		cost.Mul(cost, big.NewRat(number("billed_ms"), 1000)).Mul(cost, big.NewRat(int64(functions.PerGiBSecond), 1))
		if total := new(big.Int).Add(rounded(cost), big.NewInt(int64(functions.PerRequest))); whole {
			a.invokes[total.String()] = append(a.invokes[total.String()], held{cost: total, late: late, whole: true})
			a.count++
		}
		return
	}
	share := big.NewRat(number("cpu_milli"), int64(host.Capacity.CPU))
	if memory := big.NewRat(number("memory_bytes"), int64(host.Capacity.Memory)); memory.Cmp(share) > 0 {
		share = memory
	}
	cost := share.Mul(share, big.NewRat(int64(host.PricePerHour), 1))
	cost.Mul(cost, big.NewRat(number("held_ns"), int64(time.Hour)))
	if !whole {
		return
	}
	key := attemptKey(fields["run"], fields["task"], fields["attempt"])
	if a.attempts[key] == nil {
		a.attempts[key] = &held{cost: new(big.Int)}
	}
	a.attempts[key].cost.Add(a.attempts[key].cost, rounded(cost))
	a.attempts[key].late = late
	a.attempts[key].whole = fields["last"] == "true"
}

func attemptKey(run, task, number string) string { return run + " " + task + " " + number }

// rounded is the nearest integer, half up.
func rounded(of *big.Rat) *big.Int {
	doubled := new(big.Int).Lsh(of.Num(), 1)
	doubled.Add(doubled, of.Denom())
	return doubled.Div(doubled, new(big.Int).Lsh(of.Denom(), 1))
}

// balance compares the ledger with the hosts' own account, attempt by attempt.
type balance struct {
	attempts, lost, unrecorded int
	// otherwise counts attempts that were lost at functions and count as something else than an invoke cost: the invoke of
	// each, whose answer the engine did not live to hear, is in a Record all the same.
	otherwise int
	sum       quantity.Money
	wrong     []string
}

func (b *balance) find(format string, values ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, values...))
}

// attempts asks the engine for every attempt of every run.
func (e *engine) attempts(ctx context.Context, views map[string]ledger.RunView) (map[string][]timeline.Attempt, error) {
	all := make(map[string][]timeline.Attempt, len(views))
	for run := range views {
		attempts, err := e.client.Attempts(ctx, web.AttemptQuery{Run: run, Limit: 10_000})
		if err != nil {
			return nil, fmt.Errorf("attempts of run %s: %w", run, err)
		}
		all[run] = attempts
	}
	return all, nil
}

// compare takes what the ledger has from the own account, and looks at what is left of it. Lost attempts come last:
// what one is taken to have cost may be just what the invoke of another did, which must be left for that one.
func compare(listed map[string][]timeline.Attempt, views map[string]ledger.RunView, own account) (b balance) {
	for _, lost := range []bool{false, true} {
		for run, attempts := range listed {
			for _, attempt := range attempts {
				if lost == (attempt.Outcome == predictor.Lost) {
					b.check(run, attempt, views[run].Goal.Budget, own)
				}
			}
		}
	}
	for run, attempts := range listed {
		var sum quantity.Money
		for _, attempt := range attempts {
			sum += attempt.Cost
			b.attempts++
		}
		if cost := views[run].Totals.Cost; sum != cost {
			b.find("run %s costs %d picodollars, its attempts %d", run, cost, sum)
		}
		b.sum += sum
	}
	b.left(own)
	return b
}

// left looks at what is in no Record.
func (b *balance) left(own account) {
	for key, left := range own.attempts {
		b.unrecorded++
		if !left.late {
			b.find("attempt %s held for %s picodollars and is in no Record", key, left.cost)
		}
	}
	for cost, left := range own.invokes {
		for _, invoke := range left {
			b.unrecorded++
			if invoke.late {
				continue
			}
			if b.otherwise--; b.otherwise < 0 {
				b.find("an invoke cost %s picodollars and is in no Record", cost)
			}
		}
	}
}

// check takes from the own account what the ledger has of an attempt. Budget is that of its run; 0 is none.
func (b *balance) check(run string, attempt timeline.Attempt, budget quantity.Money, own account) {
	key := attemptKey(run, attempt.Task, strconv.Itoa(attempt.Number))
	wants := big.NewInt(int64(attempt.Cost))
	if attempt.Outcome == predictor.Lost {
		b.lost++
		if most := own.most(key, attempt, budget); wants.Cmp(most) > 0 {
			b.find("attempt %s (lost at the %s) cost %s picodollars, it can have cost %s", key, attempt.Venue, wants, most)
		}
	}
	if attempt.Venue == predictor.Function {
		switch {
		case own.take(wants):
		case attempt.Outcome == predictor.Succeeded:
			b.find("attempt %s (%s) cost %s picodollars at a function, no invoke did", key, attempt.Outcome, wants)
		case attempt.Outcome == predictor.Lost:
			b.otherwise++
		}
		return
	}
	got := own.attempts[key]
	delete(own.attempts, key)
	if attempt.Outcome == predictor.Lost {
		return
	}
	if got == nil && attempt.Cost != 0 {
		b.find("attempt %s (%s) cost %s picodollars, the host held nothing for it", key, attempt.Outcome, wants)
	} else if got != nil && got.cost.Cmp(wants) != 0 {
		b.find("attempt %s (%s) cost %s picodollars, the host held for %s", key, attempt.Outcome, wants, got.cost)
	}
}

// take takes an invoke that cost so much, and reports whether there was one. Invokes of the same cost are told apart by
// nothing else: those that must be in a Record are taken first.
func (a account) take(cost *big.Int) bool {
	same := a.invokes[cost.String()]
	if len(same) == 0 {
		return false
	}
	taken := max(slices.IndexFunc(same, func(h held) bool { return !h.late }), 0)
	a.invokes[cost.String()] = slices.Delete(same, taken, taken+1)
	return true
}

// most is what an attempt can have cost that is lost, and so counts as its last heartbeat said: what its host held for
// it, or an invoke that runs into the venue's limit; where its run has a budget, no more than that.
func (a account) most(key string, attempt timeline.Attempt, budget quantity.Money) *big.Int {
	most := a.whole
	if attempt.Venue == predictor.Function {
		memory := attempt.Grant.Memory
		if memory == 0 {
			memory = a.venue.MaxMemory
		}
		most = big.NewInt(int64(a.venue.Price(memory, a.venue.MaxDuration)))
	} else if own := a.attempts[key]; own != nil && own.whole {
		most = own.cost
	}
	if within := big.NewInt(int64(budget + overshoot)); budget > 0 && within.Cmp(most) < 0 {
		return within
	}
	return most
}
