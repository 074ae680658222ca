package gang_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var epoch = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func size(cores int) quantity.Size { return quantity.Size{CPU: quantity.Milli(cores) * quantity.Core} }

func host(name string, free, cores int) gang.Host {
	return gang.Host{ID: name, Instance: name + "-1", Free: size(free), Capacity: size(cores), Takes: true}
}

func ask(id, first string, least, most, cores int) gang.Ask {
	return gang.Ask{ID: id, Host: first, Instance: first + "-1", Least: least, Most: most, Size: size(cores)}
}

// names are the hosts of a gang.
func names(g gang.Gang) (all []string) {
	for _, m := range g.Members {
		all = append(all, m.Host)
	}
	return all
}

func TestAGangHasTheHostsWithRoom(t *testing.T) {
	t.Parallel()
	three := []gang.Host{host("a", 4, 4), host("b", 1, 4), host("c", 2, 4)}
	silent := []gang.Host{host("a", 4, 4), host("b", 4, 4)}
	silent[1].Takes = false
	for _, c := range []struct {
		name  string
		ask   gang.Ask
		hosts []gang.Host
		want  []string
	}{
		{"two that are wanted have the most room", ask("g", "a", 2, 2, 2), three, []string{"a", "c"}},
		{"as many as there are have room now", ask("g", "a", 1, 64, 2), three, []string{"a", "c"}},
		{"three that are wanted wait for room on one", ask("g", "a", 3, 3, 2), three, []string{"a", "c", "b"}},
		{"more than there are wait", ask("g", "a", 4, 4, 2), three, nil},
		{"one that is too small is none", ask("g", "a", 2, 2, 5), three, nil},
		{"one without an address is none", ask("g", "a", 2, 2, 1), silent, nil},
		{"as many as there are can be one", ask("g", "a", 1, 64, 1), silent, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, _ := gang.State{}.Hear(c.ask, epoch).Decide(c.hosts, epoch).Find("g")
			if !slices.Equal(names(got), c.want) || len(c.want) == 0 && got.Waits == "" {
				t.Errorf("hosts %v (%s); want %v", names(got), got.Waits, c.want)
			}
		})
	}
}

func TestAGangThatLosesAHostBreaks(t *testing.T) {
	t.Parallel()
	hosts := []gang.Host{host("a", 4, 4), host("b", 4, 4)}
	s := gang.State{}.Hear(ask("g", "a", 2, 2, 1), epoch).Decide(hosts, epoch)
	for _, h := range hosts {
		s = s.Take(h.ID, h.Instance, []gang.Told{{ID: "g", Phase: gang.Held, Address: "10.0.0.1:1"}})
	}
	s = s.Decide(hosts, epoch)
	if g, _ := s.Find("g"); !g.Formed || len(s.Of("b", "b-1", epoch)) != 1 || !s.Of("b", "b-1", epoch)[0].Start {
		t.Fatalf("the gang is %+v, though all hold their room", g)
	}
	again := slices.Clone(hosts)
	again[1].Instance = "b-2"
	for what, left := range map[string][]gang.Host{"is gone": hosts[:1], "has begun anew": again} {
		g, _ := s.Decide(left, epoch).Find("g")
		if g.Broken == "" || !g.Lost || len(s.Decide(left, epoch).Of("a", "a-1", epoch)) != 0 {
			t.Errorf("a host %s, and the gang is %+v", what, g)
		}
	}
	ended := s.Take("b", "b-1", []gang.Told{{ID: "g", Phase: gang.Ended, Why: "exit status 3"}}).Decide(hosts, epoch)
	if g, _ := ended.Find("g"); g.Broken != "on host b: exit status 3" || g.Lost {
		t.Errorf("what ran on a host has ended, and the gang is %+v", g)
	}
	left := s.Take("b", "b-1", []gang.Told{{ID: "g", Phase: gang.Left}}).Decide(hosts[:1], epoch)
	if g, _ := left.Find("g"); g.Broken != "" || len(left.Of("b", "b-1", epoch)) != 0 ||
		len(left.Of("a", "a-1", epoch)) != 1 {
		t.Errorf("what ran on a host has ended well, and the gang is %+v", g)
	}
	if _, there := s.Decide(hosts[1:], epoch).Find("g"); there {
		t.Error("a gang is there whose first host is lost")
	}
	if _, there := s.Decide(hosts, epoch.Add(gang.SilentFor+time.Second)).Find("g"); there {
		t.Error("a gang is there that nobody asks for")
	}
}

// machine is a host of a simulated stack, whose room goes to who asks first.
type machine struct {
	cores, held int
	holds       map[string]*hold // by gang
}

type hold struct {
	cores   int
	granted bool
	since   time.Time
}

// TestNoGangWaitsForEverNorHoldsAPartForLong has many gangs ask for hosts on which other attempts come and go: each is
// formed in the end, none holds room for longer than the deadline without being formed, and no host holds more than it
// has.
func TestNoGangWaitsForEverNorHoldsAPartForLong(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		machines := map[string]*machine{}
		var order []string
		for i := range rapid.IntRange(2, 6).Draw(t, "hosts") {
			name := fmt.Sprintf("h%d", i)
			order = append(order, name)
			machines[name] = &machine{cores: rapid.IntRange(2, 8).Draw(t, "cores"), holds: map[string]*hold{}}
		}
		type training struct {
			ask  gang.Ask
			runs time.Duration
			done time.Time
			over bool
		}
		var trainings []*training
		for i := range rapid.IntRange(1, 8).Draw(t, "gangs") {
			first := rapid.SampledFrom(order).Draw(t, "first")
			least := rapid.IntRange(1, len(order)).Draw(t, "least")
			trainings = append(trainings, &training{
				ask:  ask(fmt.Sprintf("g%d", i), first, least, rapid.IntRange(least, len(order)).Draw(t, "most"), 2),
				runs: time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second,
			})
		}
		var s gang.State
		const step = 500 * time.Millisecond
		for now := epoch; ; now = now.Add(step) {
			if now.Sub(epoch) > time.Hour {
				t.Fatalf("gangs wait for an hour: %+v", s)
			}
			left := 0
			for _, one := range trainings {
				if one.over {
					continue
				}
				left++
				s = s.Hear(one.ask, now)
				if g, _ := s.Find(one.ask.ID); g.Formed && one.done.IsZero() {
					one.done = now.Add(one.runs)
				}
				if !one.done.IsZero() && now.After(one.done) {
					one.over = true
					s = s.Over(one.ask.ID, one.ask.Host)
				}
			}
			if left == 0 {
				return
			}
			// Another attempt comes or goes for a while; at the end all is the gangs'.
			if now.Sub(epoch) < 5*time.Minute && rapid.IntRange(0, 9).Draw(t, "event") == 0 {
				m := machines[rapid.SampledFrom(order).Draw(t, "where")]
				if other, runs := m.holds["other"]; runs {
					m.held -= other.cores
					delete(m.holds, "other")
				} else if m.cores > m.held {
					m.holds["other"] = &hold{cores: 1, granted: true, since: now}
					m.held++
				}
			} else if now.Sub(epoch) >= 5*time.Minute {
				for _, m := range machines {
					if other, runs := m.holds["other"]; runs {
						m.held -= other.cores
						delete(m.holds, "other")
					}
				}
			}
			var hosts []gang.Host
			for _, name := range order {
				hosts = append(hosts, host(name, machines[name].cores-machines[name].held, machines[name].cores))
			}
			s = s.Decide(hosts, now)
			for _, name := range order {
				m := machines[name]
				wanted := s.Of(name, name+"-1", now)
				for id, h := range m.holds {
					if id != "other" && !slices.ContainsFunc(wanted, func(w gang.Wanted) bool { return w.ID == id }) {
						if h.granted {
							m.held -= h.cores
						}
						delete(m.holds, id)
					}
				}
				for _, w := range wanted {
					if m.holds[w.ID] == nil {
						m.holds[w.ID] = &hold{cores: 2, since: now}
					}
				}
				var told []gang.Told
				for _, w := range wanted {
					h := m.holds[w.ID]
					if !h.granted && m.held+h.cores <= m.cores {
						h.granted = true
						h.since = now
						m.held += h.cores
					}
					if h.granted {
						told = append(told, gang.Told{ID: w.ID, Phase: gang.Held, Address: "10.0.0.1:1"})
					}
					if g, _ := s.Find(w.ID); h.granted && !g.Formed && now.Sub(h.since) > gang.HoldFor+step {
						t.Fatalf("%s holds room for %s since %s without its gang", name, w.ID, now.Sub(h.since))
					}
				}
				s = s.Take(name, name+"-1", told)
				if m.held > m.cores {
					t.Fatalf("%s holds %d of %d cores", name, m.held, m.cores)
				}
			}
			forming := 0
			for _, g := range s.Gangs {
				if !g.Formed && len(g.Members) > 0 {
					forming++
				}
			}
			if forming > 1 {
				t.Fatalf("%d gangs form at a time", forming)
			}
		}
	})
}

// mostMessage is what NATS takes in a message unless its operator says otherwise; a seal takes less than the rest.
const mostMessage = 1<<20 - 1<<10

// TestAllGangsFitIntoOneMessage has more gangs ask than there is place for, forms all that have one, and has their
// hosts say as much as they can: what is kept is never too large, and those that had no place get one when others end.
func TestAllGangsFitIntoOneMessage(t *testing.T) {
	t.Parallel()
	var hosts []gang.Host
	for i := range gang.MostHosts {
		h := host(fmt.Sprintf("%0253d", i), 4, 4)
		h.Instance = strings.Repeat("i", gang.MostInstance)
		hosts = append(hosts, h)
	}
	long := strings.Repeat("<\x00", 1<<10)
	fits := func(what string, s gang.State) {
		t.Helper()
		if text, err := json.Marshal(s); err != nil || len(text) > mostMessage {
			t.Fatalf("%s: %d gangs take %d bytes (%v), want %d at most", what, len(s.Gangs), len(text), err, mostMessage)
		}
	}
	for _, c := range []struct{ order, given, most, wanted int }{
		{gang.MostOrder, 1000, 2, 8}, {3 << 10, 1000, 2, 40}, {3 << 10, 1000, gang.MostHosts, 12}, {20, 0, 1, 100},
	} {
		var s gang.State
		asked := func(i int) gang.Ask {
			a := ask(fmt.Sprintf("%0500d", i), hosts[0].ID, c.most, c.most, 1)
			a.Instance, a.Order = hosts[0].Instance, json.RawMessage(`"`+strings.Repeat("x", c.order-2)+`"`)
			a.Given = make([]byte, c.given)
			return a
		}
		for i := range 2000 {
			s = s.Hear(asked(i), epoch)
		}
		kept := len(s.Gangs)
		if kept < c.wanted || kept == 2000 || !s.Full(asked(2000)) {
			t.Errorf("orders of %d bytes for %d hosts: %d are kept of 2000, want %d or more", c.order, c.most, kept, c.wanted)
		}
		fits("they wait", s)
		all := func(phase gang.Phase, formed bool, why string) {
			var told []gang.Told
			for _, g := range s.Gangs {
				if g.Formed == formed && len(g.Members) > 0 {
					told = append(told, gang.Told{
						ID: g.ID, Phase: phase, Address: strings.Repeat("1", 100), PerHour: 1 << 62, Why: why,
					})
				}
			}
			for _, h := range hosts[:c.most] {
				s = s.Take(h.ID, h.Instance, told)
			}
		}
		s = s.Decide(hosts, epoch)
		all(gang.Refused, false, long)
		fits("the hosts of one refuse", s)
		s = s.Decide(hosts, epoch)
		fits("that is why it waits", s)
		for range 2 * kept {
			s = s.Decide(hosts, epoch.Add(2*time.Second))
			all(gang.Held, false, "")
		}
		if slices.ContainsFunc(s.Gangs, func(g gang.Gang) bool { return !g.Formed }) {
			t.Errorf("not all of %d gangs are formed", kept)
		}
		fits("they run", s)
		all(gang.Ended, true, long)
		fits("what they ran has ended", s)
		if broken, _ := s.Find(asked(0).ID); c.most > 1 && broken.Broken == "" {
			t.Error("what ran on all hosts has ended, and the first gang goes on")
		}
		if _, in := s.Over(asked(0).ID, hosts[0].ID).Hear(asked(2000), epoch).Find(asked(2000).ID); !in {
			t.Error("one is over, and another one has no place")
		}
	}
}
