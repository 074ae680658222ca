// Package gang decides which hosts run an attempt together: a gang has room on all of its hosts, or on none.
//
// One gang forms at a time, in the order in which they asked, so that no two wait for each other. Its hosts are asked
// to hold room until a deadline; when all do, it is formed, and when one does not, all give back what they hold and
// another gang has its turn. Nothing is held for longer than [HoldFor] by a gang that is not formed.
//
// All functions take a state and return another one; none looks at a clock.
package gang

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// HoldFor is how long hosts hold room for a gang that is not formed: longer than it takes to be told and to answer,
	// and than short attempts take to end.
	HoldFor = 10 * time.Second
	// Pause is how long a gang waits whose turn was in vain, doubled each time up to longestPause.
	Pause        = time.Second
	longestPause = 15 * time.Second
	// SilentFor is how long the first host may not ask for its gang any more until it is no gang.
	SilentFor = 15 * time.Second
	// MostHosts bounds the hosts of a gang.
	MostHosts = 64
	// MostOrder bounds what a gang runs, in bytes.
	MostOrder = 64 << 10
	// MostInstance bounds what names a start of an agent, in bytes.
	MostInstance = 200
	// MostKept bounds what all gangs may take together, in bytes, each with all of its hosts. They are kept as one
	// document, for which NATS has 1 MiB; the rest is for what those say whose turn it is.
	MostKept = 768 << 10
	// keptGang is what a gang takes besides its order, and keptMember what each of its hosts does.
	keptGang   = 4 << 10
	keptMember = 768
	// mostWhy bounds what is kept of why a host refuses, or of how what it ran has ended, in bytes of JSON.
	mostWhy = 1000
)

// Ask is what an attempt wants that is to run on several hosts.
type Ask struct {
	// ID names the attempt, as no other.
	ID string `json:"id"`
	// Host is the first of the gang, which the attempt was given to, and Instance the start of its agent.
	Host     string `json:"host"`
	Instance string `json:"instance"`
	// Least and Most are how many hosts it wants, the first included, from 1.
	Least int `json:"least"`
	Most  int `json:"most"`
	// Size is what each holds.
	Size quantity.Size `json:"size"`
	// Order is what the other hosts run, for their agents.
	Order json.RawMessage `json:"order,omitempty"`
	// Given is the attempt as the engine has given it to the first host: what other hosts are shown to run of is made of
	// it.
	Given []byte `json:"given,omitempty"`
}

// ID names an attempt.
func ID(run, task string, attempt int) string { return fmt.Sprintf("%s/%s/%d", run, task, attempt) }

// AttemptOf is the reverse of ID; attempt is 0 of what is none.
func AttemptOf(id string) (run, task string, attempt int) {
	first, last := strings.IndexByte(id, '/'), strings.LastIndexByte(id, '/')
	if first < 0 || last <= first {
		return "", "", 0
	}
	attempt, _ = strconv.Atoi(id[last+1:]) // 0 is none
	return id[:first], id[first+1 : last], attempt
}

// Validate refuses what cannot be asked.
func (a Ask) Validate() error {
	switch {
	case a.ID == "" || a.Host == "" || a.Instance == "":
		return fmt.Errorf("a gang %q of host %q, instance %q; want all of them", a.ID, a.Host, a.Instance)
	case len(a.Instance) > MostInstance:
		return fmt.Errorf("an instance of %d bytes; want %d at most", len(a.Instance), MostInstance)
	case a.Least < 1 || a.Most < a.Least || a.Most > MostHosts:
		return fmt.Errorf("a gang of %d to %d hosts; want 1 to %d", a.Least, a.Most, MostHosts)
	case a.Size.CPU < 0 || a.Size.Memory < 0 || a.Size.GPU < 0:
		return fmt.Errorf("a gang whose hosts hold %s each; want no less than nothing", a.Size)
	case len(a.Order) > MostOrder:
		return fmt.Errorf("a gang that runs a command of %s; want %s at most, with files in place of long arguments",
			quantity.Bytes(len(a.Order)), quantity.Bytes(MostOrder))
	}
	return nil
}

// kept is what a gang that asks so takes, at most.
func (a Ask) kept() int {
	return keptGang + len(a.Order) + base64.StdEncoding.EncodedLen(len(a.Given)) + a.Most*keptMember
}

// Phase is how far a host is with what it was asked to hold.
type Phase string

// Phases. A host that gives back has no phase: it is no member any more.
const (
	Asked   Phase = "asked"
	Held    Phase = "held"
	Refused Phase = "refused"
	Ended   Phase = "ended"  // what it ran is over
	Killed  Phase = "killed" // what it ran took more memory than it held, and was killed
	Left    Phase = "left"   // what it ran has ended well: the gang goes on without the host
	Gone    Phase = "gone"   // the host gives up what it ran, as one that is stopped does
)

// ends reports whether a host holds nothing any more.
func (p Phase) ends() bool {
	return p == Refused || p == Ended || p == Killed || p == Left || p == Gone
}

// Member is a host of a gang.
type Member struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Phase    Phase  `json:"phase"`
	// Address is where the others reach it, IP:PORT; the first one's has no port.
	Address string `json:"address,omitempty"`
	// PerHour is what it costs that the host holds its room for an hour.
	PerHour quantity.Money `json:"per_hour_picodollars,omitempty"`
	// Why says why it refused, or how what it ran has ended.
	Why string `json:"why,omitempty"`
}

// Gang is one that was asked for.
type Gang struct {
	Ask

	// At is when it was asked for, Heard when the first host asked last, to the second.
	At    time.Time `json:"at"`
	Heard time.Time `json:"heard"`
	// Members are its hosts, the first one first, from its turn on; none while it waits.
	Members []Member `json:"members,omitempty"`
	// Until is when room is given back if it is not formed by then, and after that when it may have its next turn.
	Until time.Time `json:"until,omitzero"`
	// Turns counts those that were in vain.
	Turns int `json:"turns,omitempty"`
	// Formed says that all hold their room and run. Broken is why it is over since, Lost says that a host is, and Killed
	// that one held too little memory for what it ran.
	Formed bool   `json:"formed,omitempty"`
	Broken string `json:"broken,omitempty"`
	Lost   bool   `json:"lost,omitempty"`
	Killed bool   `json:"killed,omitempty"`
	// Waits is what it waits for, for people; empty once it is formed.
	Waits string `json:"waits,omitempty"`
	// Secret is what its hosts know each other by, where the first is answered; it is never kept.
	Secret string `json:"secret,omitempty"`
	// Proof shows that its first host was given the attempt, and what the others cost; like Secret.
	Proof string `json:"proof,omitempty"`
}

// State is all gangs, in the order in which they were asked for. The zero value has none.
type State struct {
	Gangs []Gang `json:"gangs,omitempty"`
}

// Host is a host as it stands.
type Host struct {
	ID       string
	Instance string
	// Free is what is granted to nobody, Capacity what there is at most.
	Free, Capacity quantity.Size
	// Takes says that it takes part in gangs: it has an address for that and takes new work.
	Takes bool
}

// Told is what a host says of one of its gangs.
type Told struct {
	ID      string         `json:"id"`
	Phase   Phase          `json:"phase"`
	Address string         `json:"address,omitempty"`
	PerHour quantity.Money `json:"per_hour_picodollars,omitempty"`
	Why     string         `json:"why,omitempty"`
}

// clone returns a state that shares nothing that is changed.
func (s State) clone() State {
	made := State{Gangs: slices.Clone(s.Gangs)}
	for i := range made.Gangs {
		made.Gangs[i].Members = slices.Clone(made.Gangs[i].Members)
	}
	return made
}

// Find returns a gang by its ID.
func (s State) Find(id string) (Gang, bool) {
	at := slices.IndexFunc(s.Gangs, func(g Gang) bool { return g.ID == id })
	if at < 0 {
		return Gang{}, false
	}
	return s.Gangs[at], true
}

// Full reports whether no gang that asks so can be kept besides those that are: it has no place in their order, and may
// ask again.
func (s State) Full(ask Ask) bool {
	all := ask.kept()
	for _, g := range s.Gangs {
		all += g.kept()
	}
	return all > MostKept
}

// Hear notes that the first host of a gang asks for it, anew or again. One for which there is no place it leaves out.
func (s State) Hear(ask Ask, now time.Time) State {
	s = s.clone()
	now = now.Truncate(time.Second) // so that asking often changes little
	for i := range s.Gangs {
		g := &s.Gangs[i]
		switch {
		case g.ID != ask.ID:
		case g.Instance != ask.Instance: // an agent that began anew asks for another attempt's room
			s.Gangs = slices.Delete(s.Gangs, i, i+1)
			return s.Hear(ask, now)
		default:
			if now.Sub(g.Heard) >= SilentFor/5 {
				g.Heard = now
			}
			return s
		}
	}
	if !s.Full(ask) {
		s.Gangs = append(s.Gangs, Gang{Ask: ask, At: now, Heard: now})
	}
	return s
}

// Over removes a gang whose attempt is over.
func (s State) Over(id, host string) State {
	s = s.clone()
	s.Gangs = slices.DeleteFunc(s.Gangs, func(g Gang) bool { return g.ID == id && g.Host == host })
	return s
}

// Take notes what a host says of its gangs. What it says of others, or as another start of it, is left out.
func (s State) Take(host, instance string, told []Told) State {
	s = s.clone()
	for _, one := range told {
		for i := range s.Gangs {
			g := &s.Gangs[i]
			at := slices.IndexFunc(g.Members, func(m Member) bool { return m.Host == host && m.Instance == instance })
			if g.ID != one.ID || at < 0 {
				continue
			}
			m := &g.Members[at]
			ends := one.Phase.ends()
			one.Why = short(one.Why)
			switch {
			case g.Formed && one.Phase == Left && at > 0:
				m.Phase = Left
			case g.Formed && ends && g.Broken == "" && at > 0:
				m.Phase, m.Why = one.Phase, one.Why
				g.Broken = "on host " + host + ": " + cmp.Or(one.Why, "what ran there has ended")
				g.Lost, g.Killed = one.Phase == Gone, one.Phase == Killed
			case !g.Formed && one.Phase != Asked:
				m.Phase, m.Address, m.PerHour, m.Why = one.Phase, one.Address, one.PerHour, one.Why
			}
		}
	}
	return s
}

// short is as much of why as is kept.
func short(why string) string {
	for {
		encoded, _ := json.Marshal(why) // of text it never fails
		if len(encoded) <= mostWhy {
			return why
		}
		why = strings.ToValidUTF8(why[:len(why)*mostWhy/(len(encoded)+1)], "")
	}
}

// Decide brings gangs on by what hosts there are: those that nobody asks for any more go, those that lost a host break,
// one whose turn is over in vain gives back, one of which all hold is formed, and where none forms the next has its
// turn.
func (s State) Decide(hosts []Host, now time.Time) State {
	s = s.clone()
	there := make(map[string]Host, len(hosts))
	for _, h := range hosts {
		there[h.ID] = h
	}
	lives := func(host, instance string) bool {
		h, is := there[host]
		return is && h.Instance == instance
	}
	s.Gangs = slices.DeleteFunc(s.Gangs, func(g Gang) bool {
		return now.Sub(g.Heard) > SilentFor || !lives(g.Host, g.Instance)
	})
	forming := false
	for i := range s.Gangs {
		forming = s.Gangs[i].advance(lives, now) || forming
	}
	for i := range s.Gangs {
		if g := &s.Gangs[i]; !forming && !g.Formed && len(g.Members) == 0 && !now.Before(g.Until) {
			forming = g.ask(there, hosts, now)
		}
	}
	return s
}

// advance brings on a gang that has had its turn, and reports whether that goes on.
func (g *Gang) advance(lives func(host, instance string) bool, now time.Time) (forming bool) {
	switch {
	case g.Formed:
		for _, m := range g.Members[1:] {
			if g.Broken == "" && m.Phase != Left && !lives(m.Host, m.Instance) {
				g.Broken, g.Lost = "host "+m.Host+" is lost", true
			}
		}
	case len(g.Members) == 0:
	case !slices.ContainsFunc(g.Members, func(m Member) bool { return m.Phase != Held }):
		g.Formed, g.Waits, g.Until = true, "", time.Time{}
	default:
		bad := slices.IndexFunc(g.Members, func(m Member) bool {
			return m.Phase.ends() || !lives(m.Host, m.Instance)
		})
		if bad < 0 && now.Before(g.Until) {
			return true
		}
		g.vain(bad, now)
	}
	return false
}

// vain ends the turn of a gang that did not get all of its room.
func (g *Gang) vain(bad int, now time.Time) {
	g.Waits = "not all hosts had room for " + g.Size.String() + " within " + HoldFor.String()
	if bad >= 0 {
		g.Waits = "host " + g.Members[bad].Host + " has no room now: " + cmp.Or(g.Members[bad].Why, "it is lost")
	}
	g.Members = nil
	g.Turns++
	g.Until = now.Add(g.Lasts())
}

// Lasts is for how long what ends at Until does: a turn, or the pause after one that was in vain.
func (g Gang) Lasts() time.Duration {
	switch {
	case len(g.Members) > 0:
		return HoldFor
	case g.Turns > 0:
		return min(Pause<<min(g.Turns-1, 10), longestPause)
	}
	return 0
}

// ask chooses the hosts of a gang and asks them, where there are as many as it wants at least: those with room before
// those that may get some, of each those with the most.
func (g *Gang) ask(there map[string]Host, hosts []Host, now time.Time) bool {
	var can []Host
	for _, h := range hosts {
		if h.ID != g.Host && h.Takes && fits(g.Size, h.Capacity) {
			can = append(can, h)
		}
	}
	roomy := func(h Host) bool { return fits(g.Size, h.Free) }
	slices.SortStableFunc(can, func(a, b Host) int {
		if roomy(a) != roomy(b) {
			if roomy(a) {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.Free.GPU, a.Free.GPU), cmp.Compare(b.Free.CPU, a.Free.CPU), cmp.Compare(a.ID, b.ID))
	})
	free := 1
	for _, h := range can {
		if roomy(h) {
			free++
		}
	}
	count := max(g.Least, min(free, g.Most))
	if first := there[g.Host]; count > 1 && !first.Takes {
		if g.Least > 1 {
			g.Waits = "host " + g.Host + ", which has its task, takes no part in gangs now: it is drained, its disk is " +
				"full, or its agent has no --training-address"
			return false
		}
		count = 1
	}
	if len(can)+1 < count {
		g.Waits = fmt.Sprintf("%d hosts are wanted with %s each, and %d take part in gangs that have so much "+
			"(see --training-address of `spillway agent`)", g.Least, g.Size, len(can)+1)
		return false
	}
	g.Members = append(g.Members, Member{Host: g.Host, Instance: g.Instance, Phase: Asked})
	for _, h := range can[:count-1] {
		g.Members = append(g.Members, Member{Host: h.ID, Instance: h.Instance, Phase: Asked})
	}
	g.Until, g.Waits = now.Add(HoldFor), "hosts are asked to hold room"
	return true
}

// fits reports whether a size fits into what there is.
func fits(size, has quantity.Size) bool {
	size.GPUMemory, has.GPUMemory = 0, 0
	return size.Fits(has)
}

// Wanted is what a host is to hold or run of one gang.
type Wanted struct {
	ID string `json:"id"`
	// Number is that of the host in the gang, from 0.
	Number int `json:"number"`
	// Size is what to hold.
	Size quantity.Size `json:"size"`
	// For is how much longer to wait for room.
	For time.Duration `json:"for_ns,omitempty"`
	// Start says that the gang is formed: what Order says is to run.
	Start bool            `json:"start,omitempty"`
	Order json.RawMessage `json:"order,omitempty"`
	// Secret is what the hosts of the gang know each other by, Hosts their names and addresses; once it is formed.
	Secret string   `json:"secret,omitempty"`
	Hosts  []Member `json:"hosts,omitempty"`
	// Proof shows that the host was asked to run a part of the attempt, which Given is, as the engine keeps it.
	Proof string `json:"proof,omitempty"`
	Given []byte `json:"-"`
}

// Of is all that a host is to hold or run now: whatever else it holds it gives back.
func (s State) Of(host, instance string, now time.Time) (all []Wanted) {
	for _, g := range s.Gangs {
		at := slices.IndexFunc(g.Members, func(m Member) bool { return m.Host == host && m.Instance == instance })
		if at < 0 || g.Broken != "" || g.Members[at].Phase == Left {
			continue
		}
		w := Wanted{ID: g.ID, Number: at, Size: g.Size, Start: g.Formed}
		if g.Formed {
			w.Order, w.Hosts, w.Given = g.Order, g.Members, g.Given
		} else {
			w.For = max(g.Until.Sub(now), 0)
		}
		all = append(all, w)
	}
	return all
}

// Report is what a host says of the gangs that it is in, from time to time.
type Report struct {
	Host     string `json:"host"`
	Instance string `json:"instance"`
	Gangs    []Told `json:"gangs,omitempty"`
}
