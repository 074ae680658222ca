package digits

import (
	"fmt"
	"math"
	"math/rand/v2"
)

const (
	// smallestSide and largestSide bound the side of a prepared image in pixels; it is always a multiple of 4.
	smallestSide, largestSide = 8, 28
	// testShare is the part of the images that is held out: one in testShare.
	testShare = 10
	// fewestImages is what a split into training, validation and test images needs at least.
	fewestImages = 20
)

// Dataset is the prepared images, shuffled: the network's input. The zero value holds none.
type Dataset struct {
	// Side is the width and height in pixels: a multiple of 4 from 8 to 28.
	Side int
	// Pixels holds the images one after the other; a byte p stands for p/255, from 0 (paper) to 1 (full ink).
	Pixels []byte
	// Labels holds the digit 0..9 of each image.
	Labels []byte
}

// Span is a run of images in a Dataset. The zero value is empty.
type Span struct {
	// First is the index of the first image.
	First int `json:"first"`
	// Count is how many images it has.
	Count int `json:"count"`
}

// contains reports whether inner lies within s.
func (s Span) contains(inner Span) bool {
	return inner.Count >= 0 && inner.First >= s.First && inner.First <= s.First+s.Count &&
		inner.Count <= s.First+s.Count-inner.First
}

// prepare makes every image square and of one scale, and shuffles them. The same seed gives the same order.
func prepare(m Images, seed int64) (Dataset, error) {
	if err := m.check(); err != nil {
		return Dataset{}, err
	}
	if len(m.Labels) < fewestImages {
		return Dataset{}, fmt.Errorf("%d images cannot be split into training and test: give at least %d", len(m.Labels),
			fewestImages)
	}
	side := sideFor(m.Width, m.Height)
	size := m.Width * m.Height
	d := Dataset{Side: side, Pixels: make([]byte, 0, len(m.Labels)*side*side), Labels: make([]byte, 0, len(m.Labels))}
	for _, i := range newRandom(seed, streamShuffle).Perm(len(m.Labels)) {
		d.Pixels = append(d.Pixels, square(m.Pixels[i*size:(i+1)*size], m.Width, m.Height, m.Max, side)...)
		d.Labels = append(d.Labels, m.Labels[i])
	}
	return d, nil
}

// split cuts count images, at least fewestImages, into the part to train on and the part held out.
func split(count int) (train, test Span) {
	held := count / testShare
	return Span{0, count - held}, Span{count - held, held}
}

// sideFor returns the side of the square that images of this size are fitted into.
func sideFor(width, height int) int {
	return min(max((max(width, height)+3)/4*4, smallestSide), largestSide)
}

// square centres an image on a square of paper and scales its values to 0..255. An image larger than the square is made
// smaller first, keeping its proportions; a smaller one keeps its pixels.
func square(pixels []byte, width, height, full, side int) []byte {
	values := make([]float64, len(pixels))
	for i, p := range pixels {
		values[i] = min(float64(p)/float64(full), 1)
	}
	if longer := max(width, height); longer > side {
		w := max(1, (width*side+longer/2)/longer)
		h := max(1, (height*side+longer/2)/longer)
		values, width, height = shrink(values, width, height, w, h), w, h
	}
	out := make([]byte, side*side)
	left, top := (side-width)/2, (side-height)/2
	for y := range height {
		for x := range width {
			out[(top+y)*side+left+x] = byte(math.Round(255 * values[y*width+x]))
		}
	}
	return out
}

// shrink resamples an image to w x h pixels, each the mean of the area it covers, so that thin strokes fade and do not
// vanish.
func shrink(values []float64, width, height, w, h int) []float64 {
	rows := make([]float64, w*height) // narrower
	for y := range height {
		average(values[y*width:], 1, width, rows[y*w:], 1, w)
	}
	out := make([]float64, w*h) // and lower
	for x := range w {
		average(rows[x:], w, height, out[x:], w, h)
	}
	return out
}

// average writes n means of equal, possibly fractional, parts of the m values in; the steps are the distances of
// neighbours.
func average(in []float64, inStep, m int, out []float64, outStep, n int) {
	scale := float64(m) / float64(n)
	for i := range n {
		from, to := float64(i)*scale, float64(i+1)*scale
		sum := 0.0
		for j := int(from); j < m && float64(j) < to; j++ {
			sum += in[j*inStep] * (min(to, float64(j+1)) - max(from, float64(j)))
		}
		out[i*outStep] = sum / scale
	}
}

// image returns the pixels of image i.
func (d Dataset) image(i int) []byte { return d.Pixels[i*d.Side*d.Side : (i+1)*d.Side*d.Side] }

// all returns the span of all images.
func (d Dataset) all() Span { return Span{0, len(d.Labels)} }

// within refuses a span that reaches beyond the images or has none.
func (d Dataset) within(s Span) error {
	if s.Count == 0 || !d.all().contains(s) {
		return fmt.Errorf("images %d to %d of %d were asked for: start the run again", s.First, s.First+s.Count,
			len(d.Labels))
	}
	return nil
}

// MarshalBinary encodes the images as one artifact.
func (d Dataset) MarshalBinary() ([]byte, error) {
	e := newEncoder("DGD1", 24+len(d.Pixels)+len(d.Labels))
	e.integer(d.Side)
	e.bytes(d.Pixels)
	e.bytes(d.Labels)
	return e.data, nil
}

// UnmarshalBinary decodes what MarshalBinary wrote and refuses all else.
func (d *Dataset) UnmarshalBinary(data []byte) error {
	from := newDecoder("DGD1", data)
	d.Side, d.Pixels, d.Labels = from.integer(), from.bytes(), from.bytes()
	if err := from.close(); err != nil {
		return err
	}
	if err := checkSide(d.Side); err != nil {
		return err
	}
	if len(d.Pixels) != len(d.Labels)*d.Side*d.Side {
		return fmt.Errorf("%d images of %dx%d with %d pixels: %w", len(d.Labels), d.Side, d.Side, len(d.Pixels), errEncoding)
	}
	return checkLabels(d.Labels)
}

func checkSide(side int) error {
	if side < smallestSide || side > largestSide || side%4 != 0 {
		return fmt.Errorf("side is %d: it must be a multiple of 4 from %d to %d", side, smallestSide, largestSide)
	}
	return nil
}

// The random streams of a seed: from streamShuffle the order of all images is drawn. A training by several workers
// draws its first parameters, and from one stream for each epoch the order and for each image of each epoch its view.
const (
	streamShuffle = 1
	streamInitial = 2
	streamOrder   = 1 << 32
	streamViews   = 1 << 40
)

// newRandom returns the random numbers of a seed for one purpose.
func newRandom(seed int64, stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(seed), stream))
}
