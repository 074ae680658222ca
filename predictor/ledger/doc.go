// Package ledger accounts for runs: what each stage queued, ran, used, cost, and how good its predictions were.
//
// It folds the same events as the predictor, and the decisions, into plain views for people and programs:
//
//	l := ledger.New()
//	l.Apply(event)       // once per event of the loop's stream
//	l.Decided(decision)  // once per stored decision
//	l.SetPlan(plan)      // whenever the plan changes
//	view, known := l.Run(id)
//
// Of a run it keeps its sums, and as long as there is room its attempts, samples and curves, which Timeline,
// Allocation, Breakdown and Curves lay out in time. What was spent is kept elsewhere, by whoever keeps Charges and asks
// for a Statement; Accruing is what goes on.
//
// A Ledger reads no clock and does no I/O: folding the same stream again gives the same views.
package ledger
