package check

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/spillway-ml/spillway/activities/telemetry"
)

// nameLabel is the label under which a selector holds the name of its series.
const nameLabel = "__name__"

// Catalogue is what can be asked for: the labels of each series by its name.
type Catalogue map[string][]string

// NewCatalogue returns the series of declarations as a scrape stores them, and those that Prometheus makes itself.
func NewCatalogue(declarations []telemetry.Declaration) Catalogue {
	scraped := []string{"instance", "job"}
	all := Catalogue{"up": scraped}
	for _, one := range declarations {
		with := slices.Concat(scraped, one.Labels)
		all[one.Name] = with
		if one.Kind == telemetry.Histogram {
			all[one.Name+"_bucket"] = append(slices.Clone(with), "le")
			all[one.Name+"_sum"], all[one.Name+"_count"] = with, with
		}
	}
	return all
}

// Labels returns the labels that the series of an expression's result can have. The error names every series and label
// that is asked for and does not exist.
func (c Catalogue) Labels(expression string) ([]string, error) {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		return nil, fmt.Errorf("parse %q: %w", expression, err)
	}
	found, err := c.labelsOf(tree)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", expression, err)
	}
	return found, nil
}

func (c Catalogue) labelsOf(node parser.Expr) ([]string, error) {
	switch n := node.(type) {
	case *parser.VectorSelector:
		return c.selected(n)
	case *parser.MatrixSelector:
		return c.labelsOf(n.VectorSelector)
	case *parser.SubqueryExpr:
		return c.labelsOf(n.Expr)
	case *parser.ParenExpr:
		return c.labelsOf(n.Expr)
	case *parser.StepInvariantExpr:
		return c.labelsOf(n.Expr)
	case *parser.UnaryExpr:
		return c.labelsOf(n.Expr)
	case *parser.AggregateExpr:
		return c.aggregated(n)
	case *parser.BinaryExpr:
		return c.combined(n)
	case *parser.Call:
		return c.called(n)
	default: // numbers and strings
		return nil, nil
	}
}

func (c Catalogue) selected(n *parser.VectorSelector) ([]string, error) {
	has, known := c[n.Name]
	if !known {
		return nil, fmt.Errorf("no series %q", n.Name)
	}
	var failures []error
	for _, matcher := range n.LabelMatchers {
		if matcher.Name != nameLabel && !slices.Contains(has, matcher.Name) {
			failures = append(failures, fmt.Errorf("%s has no label %q", n.Name, matcher.Name))
		}
	}
	return has, errors.Join(failures...)
}

func (c Catalogue) aggregated(n *parser.AggregateExpr) ([]string, error) {
	inner, err := c.labelsOf(n.Expr)
	if err != nil {
		return nil, err
	}
	if err := subset(n.Grouping, inner); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Op, err)
	}
	switch {
	case n.Op == parser.TOPK || n.Op == parser.BOTTOMK:
		return inner, nil
	case n.Without:
		return slices.DeleteFunc(slices.Clone(inner), func(name string) bool {
			return slices.Contains(n.Grouping, name)
		}), nil
	default:
		return n.Grouping, nil
	}
}

func (c Catalogue) combined(n *parser.BinaryExpr) ([]string, error) {
	left, leftErr := c.labelsOf(n.LHS)
	right, rightErr := c.labelsOf(n.RHS)
	if err := errors.Join(leftErr, rightErr); err != nil {
		return nil, err
	}
	if n.VectorMatching == nil { // one side is a number
		return slices.Concat(left, right), nil
	}
	match := n.VectorMatching
	if match.On || len(match.MatchingLabels) > 0 {
		if err := errors.Join(subset(match.MatchingLabels, left), subset(match.MatchingLabels, right)); err != nil {
			return nil, fmt.Errorf("%s: %w", n.Op, err)
		}
	}
	if !match.On && len(match.MatchingLabels) == 0 && !n.Op.IsSetOperator() && !sameNames(left, right) {
		return nil, fmt.Errorf("%s: nothing matches: the left side has the labels %v, the right side %v", n.Op, left, right)
	}
	switch {
	case n.Op == parser.LOR:
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(left, right)))), nil
	case match.Card == parser.CardOneToMany:
		return slices.Concat(right, match.Include), nil
	case match.Card == parser.CardManyToOne:
		return slices.Concat(left, match.Include), nil
	case match.On && !n.Op.IsSetOperator() && !n.Op.IsComparisonOperator():
		return match.MatchingLabels, nil
	default:
		return left, nil
	}
}

func (c Catalogue) called(n *parser.Call) ([]string, error) {
	var found []string
	for _, argument := range n.Args {
		inner, err := c.labelsOf(argument)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Func.Name, err)
		}
		found = append(found, inner...)
	}
	if n.Func.Name != "histogram_quantile" {
		return found, nil
	}
	name := histogram(n.Args[1])
	if strings.HasSuffix(name, "_bucket") != slices.Contains(found, "le") {
		return nil, fmt.Errorf("histogram_quantile of %s: classic buckets are summed by le, native histograms are not", name)
	}
	return slices.DeleteFunc(found, func(name string) bool { return name == "le" }), nil
}

// histogram is the name of the first series in an expression.
func histogram(node parser.Node) string {
	var name string
	parser.Inspect(node, func(inner parser.Node, _ []parser.Node) error {
		if selector, is := inner.(*parser.VectorSelector); is && name == "" {
			name = selector.Name
		}
		return nil
	})
	return name
}

func subset(names, of []string) error {
	var failures []error
	for _, name := range names {
		if !slices.Contains(of, name) {
			failures = append(failures, fmt.Errorf("no label %q among %v", name, of))
		}
	}
	return errors.Join(failures...)
}

func sameNames(a, b []string) bool {
	return subset(a, b) == nil && subset(b, a) == nil
}
