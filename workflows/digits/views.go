package digits

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/workers/exec/gomlx"
)

// view is a slight change of an image as a hand might have made it: a turn, a change of size and a move.
type view struct {
	angle  float64 // radians
	zoom   float64 // 1 keeps the size
	dx, dy float64 // pixels to the right and down
}

// The spread of views. Moves are in parts of the side, so that small and large images move alike.
const (
	mostTurn = 12 * math.Pi / 180
	mostZoom = 0.1
	mostMove = 0.06
)

// randomView draws a view for training, which must see more change than scoring does.
func randomView(random *rand.Rand, side int) view {
	draw := func(most float64) float64 { return most * (2*random.Float64() - 1) }
	return view{
		angle: draw(mostTurn), zoom: 1 + draw(mostZoom),
		dx: draw(mostMove * float64(side)), dy: draw(mostMove * float64(side)),
	}
}

// augmented gives training the images of a span, each time in another view.
type augmented struct {
	data Dataset
	span Span
}

var _ gomlx.Dataset = augmented{}

// Samples is how many images the span has.
func (a augmented) Samples() int { return a.span.Count }

// Batch returns random views of the chosen images, and their labels.
func (a augmented) Batch(
	_ context.Context, chosen []int, random *rand.Rand,
) (inputs []gomlx.Array, target gomlx.Array, err error) {
	side, size := a.data.Side, a.data.Side*a.data.Side
	images := gomlx.Array{Shape: []int{side, side, 1}, Float32: make([]float32, len(chosen)*size)}
	labels := gomlx.Array{Int32: make([]int32, len(chosen))}
	for i, c := range chosen {
		image := a.span.First + c
		randomView(random, side).apply(a.data.image(image), side, images.Float32[i*size:(i+1)*size])
		labels.Int32[i] = int32(a.data.Labels[image])
	}
	return []gomlx.Array{images}, labels, nil
}

// scoringViews returns the count views, 1 to 189, over which a score is averaged: of 7 turns, 3 sizes and 9 moves
// those that change the image least. The first is the image as it is.
func scoringViews(side, count int) []view {
	var views []view
	for turn := -3; turn <= 3; turn++ {
		for zoom := -1; zoom <= 1; zoom++ {
			for move := range 9 {
				views = append(views, view{
					angle: mostTurn * float64(turn) / 3,
					zoom:  1 + mostZoom*float64(zoom),
					dx:    mostMove * float64(side) * float64(move%3-1),
					dy:    mostMove * float64(side) * float64(move/3-1),
				})
			}
		}
	}
	slices.SortStableFunc(views, func(a, b view) int { return cmp.Compare(a.change(side), b.change(side)) })
	return views[:min(count, len(views))]
}

// change is how far a view is from the image as it is: turn, size and move each in parts of the most that there is,
// added as squares.
func (v view) change(side int) float64 {
	move := mostMove * float64(side)
	turn, zoom, x, y := v.angle/mostTurn, (v.zoom-1)/mostZoom, v.dx/move, v.dy/move
	return turn*turn + zoom*zoom + x*x + y*y
}

// apply writes the image as seen in the view to out, as values in 0..1. Each pixel is interpolated between the four
// around the place it came from; outside is paper.
func (v view) apply(image []byte, side int, out []float32) {
	centre := float64(side-1) / 2
	cos, sin := math.Cos(v.angle)/v.zoom, math.Sin(v.angle)/v.zoom
	at := func(x, y int) float64 {
		if x < 0 || y < 0 || x >= side || y >= side {
			return 0
		}
		return float64(image[y*side+x])
	}
	for y := range side {
		for x := range side {
			u, w := float64(x)-centre-v.dx, float64(y)-centre-v.dy
			fromX, fromY := centre+cos*u+sin*w, centre-sin*u+cos*w
			left, top := math.Floor(fromX), math.Floor(fromY)
			right, down := fromX-left, fromY-top
			x0, y0 := int(left), int(top)
			upper := at(x0, y0)*(1-right) + at(x0+1, y0)*right
			lower := at(x0, y0+1)*(1-right) + at(x0+1, y0+1)*right
			out[y*side+x] = float32((upper*(1-down) + lower*down) / 255)
		}
	}
}

// plain writes the unchanged image to out, as values in 0..1.
func plain(image []byte, out []float32) {
	for i, p := range image {
		out[i] = float32(p) / 255
	}
}
