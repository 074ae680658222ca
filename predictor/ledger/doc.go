// Package ledger accounts for runs: what each stage queued, ran, used, cost, and how good its predictions were.
//
// It folds the same events as the predictor, and the decisions, into plain views for people and programs:
//
//	l := ledger.New()
//	l.Apply(event)       // once per event of the loop's stream
//	l.Decided(decision)  // once per stored decision
//	l.SetPlan(plan)      // whenever the plan changes
//	view, known := l.Run(id)
//	bill := l.Bill(ledger.BillQuery{By: ledger.ByStage}, now)
//
// Of a run it keeps its sums, and as long as there is room its attempts, samples and curves, which Timeline, Allocation, Breakdown and Curves
// lay out in time; package spend keeps the money of those that are dropped.
//
// A Ledger reads no clock and does no I/O: folding the same stream again gives the same views.
package ledger
