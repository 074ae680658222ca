package threeway

import "container/heap"

// ends are when running tasks end, the first at the root.
type ends []float64

// Len implements heap.Interface.
func (e ends) Len() int { return len(e) }

// Less implements heap.Interface.
func (e ends) Less(i, j int) bool { return e[i] < e[j] }

// Swap implements heap.Interface.
func (e ends) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *ends) Push(end any) { *e = append(*e, end.(float64)) } //nolint:forcetypeassert // only push calls it

// Pop implements heap.Interface.
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (e *ends) push(end float64) { heap.Push(e, end) }

func (e *ends) pop() float64 { return heap.Pop(e).(float64) } //nolint:forcetypeassert // Pop returns one
