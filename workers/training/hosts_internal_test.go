package training

import (
	"context"
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/exec"
)

// linked is a synthetic executor on several hosts, between which ranks exchange something else than on one.
type linked struct {
	exchanging
	between exec.Exchange
}

func (l linked) Exchange(ctx context.Context, devices []exec.Device) (exec.Exchange, error) {
	if devices[0].Host == devices[len(devices)-1].Host {
		return l.exchanging.Exchange(ctx, devices)
	}
	found := l.between
	found.Ranks = len(devices)
	return found, l.fails
}

// hostsOf are hosts of a gang with so many CPUs each.
func hostsOf(hosts, cpus int) (all []Host) {
	for h := range hosts {
		one := Host{Name: "h" + strconv.Itoa(h)}
		for i := range cpus {
			one.Devices = append(one.Devices, exec.Device{ID: "cpu-" + strconv.Itoa(i), Threads: 1})
		}
		all = append(all, one)
	}
	return all
}

// chosenAcross plans a synthetic model on hosts of so many CPUs.
func chosenAcross(t rapid.TB, l linked, job Job, cpus int) (setup, choice, []way) {
	t.Helper()
	ways, err := job.ways(processorsOf(cpus))
	if err != nil {
		t.Fatal(err)
	}
	s := setupOf(t, l.synthetic, job.Batch, exec.Device{Threads: 1})
	for n := 2; n <= cpus; n++ { // each class costs the same
		s.model.classes[classOf(exec.Device{Threads: n})] = s.model.classes[classOf(exec.Device{Threads: 1})]
	}
	s.recompute = job.Recompute
	c, err := s.chooseAmong(context.Background(), job, ways)
	if err != nil {
		t.Fatal(err)
	}
	return s, c, ways
}

// TestTheChoiceIsTheBestOfAllHostsReplicasAndParts compares with every way to cut a chain, for every number of
// replicas, on one host and over all of them, with links of every speed.
func TestTheChoiceIsTheBestOfAllHostsReplicasAndParts(t *testing.T) {
	t.Parallel()
	across, spans := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := linked{exchanging{synthetic: drawSynthetic(t, 1, 4, false), exchange: drawExchange(t)}, drawExchange(t)}
		hosts, cpus := rapid.IntRange(2, 3).Draw(t, "hosts"), rapid.IntRange(1, 2).Draw(t, "CPUs")
		job := Job{
			Executor: l, Batch: rapid.SampledFrom([]int{6, 8, 12}).Draw(t, "batch"), Replicas: AutoReplicas,
			Recompute: RecomputeNever, Hosts: hostsOf(hosts, cpus),
		}
		s, c, ways := chosenAcross(t, l, job, cpus)
		s.exchange, s.across = l.exchange, l.between
		s.exchange.Ranks, s.across.Ranks = 2, 2
		best := math.Inf(1)
		for _, w := range ways {
			if w.hosts > 1 { // it was measured among the first that are tried
				s.across.Ranks = hosts
			}
			for _, k := range w.parts(job) {
				if k > len(l.ops) {
					continue
				}
				of := s.of(w, k, exec.ShardNone)
				for m := 1; m <= job.Batch/w.replicas(); m *= 2 {
					if w.replicas() == 1 || k == 1 || job.Batch%(w.replicas()*m) == 0 {
						best = min(best, everySplit(t, of, w.groups[0].of(k), m))
					}
				}
			}
		}
		if c.best.seconds > best*worthAPart+1e-12 {
			t.Errorf("a step of %d replicas of %d parts on %d hosts takes %v s; another takes %v", c.best.count(),
				len(c.best.parts), max(c.best.hosts, 1), c.best.seconds, best)
		}
		switch {
		case c.best.hosts > 1 && c.best.count() > 1:
			across++
		case c.best.hosts > 1:
			spans++
		}
	})
	if across == 0 {
		t.Errorf("%d plans had replicas on several hosts, and %d parts", across, spans)
	}
}

// TestASlowLinkIsNotWorthAnotherHost has a model of one operation that two hosts compute in half of the time.
func TestASlowLinkIsNotWorthAnotherHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		eachByte float64 // seconds
		every    bool
		want     int
	}{{0, false, 2}, {1e-5, false, 2}, {1e-3, false, 1}, {1e-3, true, 2}} {
		l := linked{between: exec.Exchange{AllReduce: exec.Transfer{EachByte: c.eachByte}}}
		l.ops = []syntheticOp{{forward: line{each: 0.1}, backward: line{each: 0.2}, parameters: 4000}}
		job := Job{
			Executor: l, Batch: 8, Replicas: AutoReplicas, Recompute: RecomputeNever, Hosts: hostsOf(2, 1), EveryHost: c.every,
		}
		if _, got, _ := chosenAcross(t, l, job, 1); max(got.best.hosts, 1) != c.want {
			t.Errorf("%v s a byte, every host %v: a plan on %d hosts; want %d", c.eachByte, c.every, max(got.best.hosts, 1),
				c.want)
		}
	}
}

// TestNoDeviceOfAHostIsOfTwoRanks looks at the devices of every way.
func TestNoDeviceOfAHostIsOfTwoRanks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hosts, cpus := rapid.IntRange(2, 4).Draw(t, "hosts"), rapid.IntRange(1, 5).Draw(t, "CPUs")
		job := Job{Batch: 1 << 10, Replicas: AutoReplicas, Hosts: hostsOf(hosts, cpus), EveryHost: true}
		job.Hosts[hosts-1].Devices = job.Hosts[hosts-1].Devices[:rapid.IntRange(1, cpus).Draw(t, "of the last")]
		ways, err := job.ways(processorsOf(cpus))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range ways {
			for _, k := range w.parts(job) {
				if k > len(w.groups[0].all) {
					continue
				}
				seen, on := map[string]bool{}, map[int]int{}
				for r, group := range w.groups {
					of := group.of(k)
					if len(of) != k {
						t.Fatalf("%d parts have %d devices", k, len(of))
					}
					for _, d := range of {
						name := strconv.Itoa(d.Host) + " " + strconv.Itoa(r) + d.ID
						if seen[name] {
							t.Fatalf("two parts of replica %d are on %s of host %d", r, d.ID, d.Host)
						}
						seen[name] = true
						on[d.Host]++
						if group.spans == nil && d.Host != of[0].Host {
							t.Fatalf("the parts of replica %d are on several hosts", r)
						}
					}
				}
				for h := range hosts {
					if on[h] != on[0] || on[h] > len(job.Hosts[hosts-1].Devices) {
						t.Fatalf("%d replicas of %d parts have %v ranks on their hosts", w.replicas(), k, on)
					}
				}
			}
		}
	})
}
