package tuning

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// agent is in the style of Siren (Wang, Niu and Li, Distributed Machine Learning with a Serverless Architecture,
// INFOCOM 2019), whose code is not published: a policy that chooses how a stage is run when it comes to it, and that is
// learned from episodes of the job in simulation. Where Siren's is a network, this one is linear: in each stage
// workers, memory and store are drawn by themselves, each with the probabilities exp(l)/sum(exp(l)) of logits
// l = bias + slope*room, where room says what is left of the budget.
type agent struct {
	shape  []int      // how many workers, memories and stores there are to choose from: their product is all options
	logits [][]linear // of each stage, those of each of the shape one after the other
}

type linear struct{ bias, slope float64 }

// How an agent learns: REINFORCE (Williams, Simple statistical gradient-following algorithms for connectionist
// reinforcement learning, 1992, https://doi.org/10.1007/BF00992696) with the mean of a batch as baseline and advantages
// in its standard deviations. An episode is worth -log(seconds); where it costs more than the budget, less by
// penalty*log(slow/fast) + excess*log(cost/budget)*max(1, log(slow/fast)/log(dearest/least)), so that a job whose plans
// cost nearly the same is held to its budget as well. The entropy of each choice is worth entropyWeight at first and
// nothing in the end (Williams and Peng, Function optimization using connectionist reinforcement learning algorithms,
// 1991): without, an agent settles on what it met first. With a rate of a twentieth, or other penalties, the plans of
// 10,000 episodes were slower or more often too dear.
const (
	episodesInBatch = 32
	learningRate    = 2.0
	penalty         = 0.2
	excess          = 4.0
	entropyWeight   = 0.2
)

// budgeted is a job with a budget, as an agent sees it.
type budgeted struct {
	stages         [][]frontier.Option
	budget         quantity.Money
	least, dearest []float64 // what the stages from each on cost at least, and with their fastest options
	slow, fast     float64   // seconds of the job with its cheapest options, and with its fastest
}

func newBudgeted(stages [][]frontier.Option, budget quantity.Money) *budgeted {
	b := &budgeted{
		stages: stages, budget: budget,
		least: make([]float64, len(stages)+1), dearest: make([]float64, len(stages)+1),
	}
	for s := len(stages) - 1; s >= 0; s-- {
		steps := unbeaten(stages[s])
		cheapest, fastest := stages[s][steps[0]], stages[s][steps[len(steps)-1]]
		b.least[s] = b.least[s+1] + float64(cheapest.Cost)
		b.dearest[s] = b.dearest[s+1] + float64(fastest.Cost)
		b.slow += cheapest.Seconds
		b.fast += fastest.Seconds
	}
	return b
}

// room is where what is left for the stages from s on lies between what they cost at least, 0, and with their fastest
// options, 1, in logarithms; -1 to 2. So an agent can be asked about jobs other than its own.
func (b *budgeted) room(s int, left quantity.Money) float64 {
	span := math.Log(b.dearest[s] / b.least[s])
	switch {
	case left <= 0:
		return -1
	case !(span > 0):
		return 0 // there is nothing to choose
	}
	return min(2, max(-1, math.Log(float64(left)/b.least[s])/span))
}

// worth is what an episode is rewarded with.
func (b *budgeted) worth(e *episode) float64 {
	worth := -math.Log(e.seconds)
	if e.cost > b.budget {
		slower, dearer, rate := math.Log(b.slow/b.fast), math.Log(b.dearest[0]/b.least[0]), 1.0
		if dearer > 0 {
			rate = max(1, slower/dearer)
		}
		worth -= penalty*slower + excess*rate*math.Log(float64(e.cost)/float64(b.budget))
	}
	return worth
}

// episode is one way through a job.
type episode struct {
	plan    []int
	choices [][]int     // of each stage, by the shape
	chances [][]float64 // of each stage, those of all that could be chosen
	rooms   []float64
	seconds float64
	cost    quantity.Money
}

func total(shape []int) (all int) {
	for _, n := range shape {
		all += n
	}
	return all
}

func newAgent(shape []int, stages int) *agent {
	a := &agent{shape: shape}
	for range stages {
		a.logits = append(a.logits, make([]linear, total(shape)))
	}
	return a
}

func (a *agent) newEpisode() (e episode) {
	for _, logits := range a.logits {
		e.plan = append(e.plan, 0)
		e.choices = append(e.choices, make([]int, len(a.shape)))
		e.chances = append(e.chances, make([]float64, len(logits)))
		e.rooms = append(e.rooms, 0)
	}
	return e
}

// through goes through a job, choosing each time by pick.
func (a *agent) through(b *budgeted, e *episode, pick func(chances []float64) int) {
	e.seconds, e.cost = 0, 0
	for s, options := range b.stages {
		e.rooms[s] = b.room(s, b.budget-e.cost)
		e.plan[s] = 0
		from := 0
		for d, n := range a.shape {
			chances := e.chances[s][from : from+n]
			softmax(chances, a.logits[s][from:from+n], e.rooms[s])
			e.choices[s][d] = pick(chances)
			e.plan[s] = e.plan[s]*n + e.choices[s][d]
			from += n
		}
		e.seconds += options[e.plan[s]].Seconds
		e.cost = e.cost.Plus(options[e.plan[s]].Cost)
	}
}

func softmax(chances []float64, logits []linear, room float64) {
	most := math.Inf(-1)
	for i, l := range logits {
		chances[i] = l.bias + l.slope*room
		most = max(most, chances[i])
	}
	sum := 0.0
	for i := range chances {
		chances[i] = math.Exp(chances[i] - most)
		sum += chances[i]
	}
	for i := range chances {
		chances[i] /= sum
	}
}

// draw is one of those with these chances.
func draw(r *rand.Rand, chances []float64) int {
	at := r.Float64()
	for i, chance := range chances {
		if at -= chance; at < 0 {
			return i
		}
	}
	return len(chances) - 1
}

// likeliest is the one with the largest chance.
func likeliest(chances []float64) (best int) {
	for i, chance := range chances {
		if chance > chances[best] {
			best = i
		}
	}
	return best
}

// learn makes an agent from so many episodes of a job, at least one, and gives the fastest plan within the budget that
// came up in them or that the agent ends with: what it would do by itself may be slower, or cost too much.
func learn(
	r *rand.Rand, shape []int, stages [][]frontier.Option, budget quantity.Money, episodes int,
) (a *agent, plan []int, found bool) {
	a = newAgent(shape, len(stages))
	b := newBudgeted(stages, budget)
	batch, worths := make([]episode, episodesInBatch), make([]float64, episodesInBatch)
	for i := range batch {
		batch[i] = a.newEpisode()
	}
	fastest := math.Inf(1)
	keep := func(e *episode) {
		if e.cost <= budget && e.seconds < fastest {
			plan, fastest, found = slices.Clone(e.plan), e.seconds, true
		}
	}
	pick := func(chances []float64) int { return draw(r, chances) }
	for done := 0; done < episodes; {
		n := min(episodesInBatch, episodes-done)
		for i := range n {
			a.through(b, &batch[i], pick)
			worths[i] = b.worth(&batch[i])
			keep(&batch[i])
		}
		a.reinforce(batch[:n], worths[:n], entropyWeight*(1-float64(done)/float64(episodes)))
		done += n
	}
	last := a.newEpisode()
	a.through(b, &last, likeliest)
	keep(&last)
	return a, plan, found
}

// reinforce makes what was worth more than the mean likelier, by standard deviations, and all choices more alike by
// this weight of their entropy.
func (a *agent) reinforce(batch []episode, worths []float64, entropyWeight float64) {
	mean, square := 0.0, 0.0
	for _, worth := range worths {
		mean += worth / float64(len(worths))
	}
	for _, worth := range worths {
		square += (worth - mean) * (worth - mean) / float64(len(worths))
	}
	deviation := math.Sqrt(square)
	if deviation == 0 {
		deviation = 1 // all were worth the same
	}
	rate := learningRate / float64(len(worths))
	for i, worth := range worths {
		advantage := (worth - mean) / deviation
		for s, logits := range a.logits {
			from, room := 0, batch[i].rooms[s]
			for d, n := range a.shape {
				chances := batch[i].chances[s][from : from+n]
				whole := entropy(chances)
				for c, chance := range chances {
					gradient := -chance * advantage
					if c == batch[i].choices[s][d] {
						gradient += advantage
					}
					gradient -= entropyWeight * chance * (math.Log(max(chance, tiny)) + whole)
					logits[from+c].bias += rate * gradient
					logits[from+c].slope += rate * gradient * room
				}
				from += n
			}
		}
	}
}

// entropy is that of a choice.
func entropy(chances []float64) (sum float64) {
	for _, chance := range chances {
		sum -= chance * math.Log(max(chance, tiny))
	}
	return sum
}

// tiny stands for a chance of none, of which there is no logarithm.
const tiny = 1e-300

// policy is what the agent does by itself, with a job of as many stages: the likeliest each time.
func (a *agent) policy(stages [][]frontier.Option, budget quantity.Money) (plan []int, found bool) {
	e := a.newEpisode()
	a.through(newBudgeted(stages, budget), &e, likeliest)
	return e.plan, e.cost <= budget
}

// trained is a job with the agents that learned it, one for each of its budgets.
type trained struct {
	stages      [][]frontier.Option
	ours, exact frontier.Frontier
	budgets     []quantity.Money
	agents      []*agent
}

// siren lets an agent learn the job with each budget, and compares with the best that came up.
func (c *Case) siren(r *rand.Rand, t *trained, episodes int) {
	began := time.Now()
	for _, budget := range t.budgets {
		agent, plan, found := learn(r, allocationShape(), t.stages, budget, episodes)
		t.agents = append(t.agents, agent)
		c.planned("siren", t.stages, t.ours, t.exact, budget, plan, found)
		c.Episodes += episodes
	}
	c.Learning += time.Since(began)
}

// offline compares with what the agents of other jobs do, of those that learned with the budget at the same place.
func (c *Case) offline(jobs []*trained) {
	for i, test := range jobs {
		for j, teacher := range jobs {
			if i == j {
				continue
			}
			for b, budget := range test.budgets {
				plan, found := teacher.agents[b].policy(test.stages, budget)
				c.planned("siren offline", test.stages, test.ours, test.exact, budget, plan, found)
			}
		}
	}
}
