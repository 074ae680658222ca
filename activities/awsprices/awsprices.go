// Package awsprices asks AWS what functions and hosts cost: list prices of the Price List API, and the history of spot
// prices of EC2.
//
// What the Price List API answers is JSON in strings, whose form is that of the price list files:
// https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-an-offer.html.
package awsprices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/pricing/types"

	catalogue "github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Provider is how rows of the catalogue name AWS.
const Provider = "aws"

// apiRegion is one of the few in which the Price List API is; it tells of all regions:
// https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html.
const apiRegion = "us-east-1"

// Errors of Fetch.
var (
	// ErrRegion says that AWS has no price of functions in the region.
	ErrRegion = errors.New("the Price List API has no prices of the region")
	// ErrCurrency says that prices are not in US dollars, which a catalogue has.
	ErrCurrency = errors.New("prices are not in US dollars")
	// ErrForm says that an answer is not in the form that AWS documents.
	ErrForm = errors.New("the Price List API answers in another form")
)

// Query says what to ask for. All fields are needed.
type Query struct {
	// Region is such as "us-east-1".
	Region string
	// Hosts are the instance types whose prices are asked for, with their sizes.
	Hosts map[string]quantity.Size
	// Functions is the most that one function can have.
	Functions quantity.Size
	// Now is the day of the prices, and the end of the history of spot prices.
	Now time.Time
	// History is the time over which the median of a spot price is taken; AWS keeps 90 days.
	History time.Duration
}

// Tier is a price of functions from a use in a month on, which the catalogue has only of the first.
type Tier struct {
	// Name is that of the catalogue, such as "lambda-x86".
	Name string `json:"name"`
	// Unit is what the price is for.
	Unit catalogue.Unit `json:"unit"`
	// From is the use in a month from which on it holds, in units.
	From int64 `json:"from"`
	// Price is what one Unit costs then.
	Price quantity.Money `json:"price"`
}

// Answer is what AWS says.
type Answer struct {
	// Rows are the prices, one for each unit of each name.
	Rows []catalogue.Row
	// Tiers are those beyond the first, by name and use.
	Tiers []Tier
	// Missing are the names that AWS does not sell in the region, with their kind.
	Missing []string
}

// Fetch asks AWS. Its errors wrap those of the SDK or of this package.
func Fetch(ctx context.Context, cfg aws.Config, query Query) (Answer, error) {
	f := fetcher{
		query:  query,
		prices: pricing.NewFromConfig(cfg, func(o *pricing.Options) { o.Region = apiRegion }),
		hosts:  ec2.NewFromConfig(cfg, func(o *ec2.Options) { o.Region = query.Region }),
	}
	for _, ask := range []func(context.Context) error{f.functions, f.onDemand, f.spot} {
		if err := ask(ctx); err != nil {
			return Answer{}, err
		}
	}
	return f.answer, nil
}

type fetcher struct {
	query  Query
	prices *pricing.Client
	hosts  *ec2.Client
	answer Answer
}

// product is one entry of a price list.
type product struct {
	Product struct {
		SKU        string
		Attributes map[string]string
	}
	PublicationDate string
	Terms           struct {
		OnDemand map[string]struct{ PriceDimensions map[string]dimension }
	}
}

// dimension is one price of a product.
type dimension struct {
	Unit                 string
	BeginRange, EndRange string
	PricePerUnit         map[string]string
}

// products asks for the products of a service whose attributes are these, beside the region.
func (f *fetcher) products(ctx context.Context, service string, attributes map[string]string) ([]product, error) {
	filters := []types.Filter{match("regionCode", f.query.Region)}
	for _, field := range slices.Sorted(maps.Keys(attributes)) {
		filters = append(filters, match(field, attributes[field]))
	}
	pages := pricing.NewGetProductsPaginator(f.prices, &pricing.GetProductsInput{
		ServiceCode: &service, Filters: filters, FormatVersion: aws.String("aws_v1"),
	})
	var all []product
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask for the prices of %s: %w", service, err)
		}
		for _, text := range page.PriceList {
			var one product
			if err := json.Unmarshal([]byte(text), &one); err != nil {
				return nil, fmt.Errorf("read a price of %s: %w: %w", service, ErrForm, err)
			}
			if one.Product.Attributes["regionCode"] == f.query.Region {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

func match(field, value string) types.Filter {
	return types.Filter{Type: types.FilterTypeTermMatch, Field: &field, Value: &value}
}

// tier is a dimension in numbers.
type tier struct {
	from  int64
	price quantity.Money
}

// tiersOf returns the prices of a product by the unit, in the order of the use from which on they hold.
func (p product) tiersOf(unit string) ([]tier, error) {
	var tiers []tier
	for _, term := range p.Terms.OnDemand {
		for _, d := range term.PriceDimensions {
			if d.Unit != unit {
				return nil, fmt.Errorf("%w: product %s is priced by %q, not by %q", ErrForm, p.Product.SKU, d.Unit, unit)
			}
			text, inDollars := d.PricePerUnit["USD"]
			if !inDollars {
				return nil, fmt.Errorf("%w: product %s in %s has a price in %s", ErrCurrency, p.Product.SKU,
					p.Product.Attributes["regionCode"], strings.Join(slices.Sorted(maps.Keys(d.PricePerUnit)), ", "))
			}
			price, err := quantity.ParseDollars(text)
			if err != nil {
				return nil, fmt.Errorf("%w: product %s: %w", ErrForm, p.Product.SKU, err)
			}
			from, err := strconv.ParseInt(d.BeginRange, 10, 64)
			if d.BeginRange != "" && err != nil {
				return nil, fmt.Errorf("%w: product %s begins at %q", ErrForm, p.Product.SKU, d.BeginRange)
			}
			tiers = append(tiers, tier{from, price})
		}
	}
	slices.SortFunc(tiers, func(a, b tier) int { return int(min(1, max(-1, a.from-b.from))) })
	for i := range tiers {
		if i > 0 && tiers[i].from == tiers[i-1].from {
			return nil, fmt.Errorf("%w: product %s has two prices from %d on", ErrForm, p.Product.SKU, tiers[i].from)
		}
	}
	if len(tiers) == 0 || tiers[0].from != 0 {
		return nil, fmt.Errorf("%w: product %s has no price from 0 on", ErrForm, p.Product.SKU)
	}
	return tiers, nil
}

// source says where a price was found.
func (p product) source() string {
	text := "AWS Price List API, GetProducts, SKU " + p.Product.SKU
	if day, err := time.Parse(time.RFC3339, p.PublicationDate); err == nil {
		text += ", published " + day.UTC().Format(time.DateOnly)
	}
	return text
}

// row is a price as the catalogue has it.
func (f *fetcher) row(kind catalogue.Kind, name string, capacity quantity.Size) catalogue.Row {
	return catalogue.Row{
		Kind: kind, Provider: Provider, Region: f.query.Region, Name: name, Capacity: capacity,
		Dated: f.query.Now.UTC().Truncate(24 * time.Hour),
	}
}

// meter is how the price list groups and counts one price of functions.
type meter struct {
	name, group, unit string
	per               catalogue.Unit
}

// meters are what invokes cost on demand. AWS counts 1,024 MB in a GB.
var meters = []meter{
	{"lambda-x86", "AWS-Lambda-Duration", "Lambda-GB-Second", catalogue.PerGiBSecond},
	{"lambda-x86", "AWS-Lambda-Requests", "Requests", catalogue.PerRequest},
	{"lambda-arm", "AWS-Lambda-Duration-ARM", "Lambda-GB-Second", catalogue.PerGiBSecond},
	{"lambda-arm", "AWS-Lambda-Requests-ARM", "Requests", catalogue.PerRequest},
}

// functions asks for the prices of functions, both of which a processor needs.
func (f *fetcher) functions(ctx context.Context) error {
	products, err := f.products(ctx, "AWSLambda", nil)
	if err != nil {
		return err
	}
	found := map[string][]catalogue.Row{}
	for _, m := range meters {
		for _, p := range products {
			if p.Product.Attributes["group"] != m.group {
				continue
			}
			tiers, err := p.tiersOf(m.unit)
			if err != nil {
				return fmt.Errorf("read the price of functions: %w", err)
			}
			row := f.row(catalogue.Function, m.name, f.query.Functions)
			row.Price, row.Unit, row.Source = tiers[0].price, m.per, p.source()
			found[m.name] = append(found[m.name], row)
			for _, further := range tiers[1:] {
				f.answer.Tiers = append(f.answer.Tiers, Tier{m.name, m.per, further.from, further.price})
			}
		}
	}
	if len(found["lambda-x86"]) == 0 && len(found["lambda-arm"]) == 0 {
		return fmt.Errorf("%w %s", ErrRegion, f.query.Region)
	}
	for _, name := range []string{"lambda-arm", "lambda-x86"} {
		switch len(found[name]) {
		case 2:
			f.answer.Rows = append(f.answer.Rows, found[name]...)
		case 0:
			f.answer.Missing = append(f.answer.Missing, string(catalogue.Function)+" "+name)
		default:
			return fmt.Errorf("%w: %s in %s has %d prices, not one of time and one of requests", ErrForm, name, f.query.Region,
				len(found[name]))
		}
	}
	return nil
}

// onDemand asks for the prices of hosts: Linux on shared hardware, nothing installed, no reservation.
func (f *fetcher) onDemand(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(f.query.Hosts)) {
		products, err := f.products(ctx, "AmazonEC2", map[string]string{
			"instanceType": name, "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA",
			"capacitystatus": "Used", "marketoption": "OnDemand",
		})
		if err != nil {
			return err
		}
		switch len(products) {
		case 0:
			f.answer.Missing = append(f.answer.Missing, string(catalogue.OnDemandHost)+" "+name)
			continue
		case 1:
		default:
			return fmt.Errorf("%w: %s in %s is %d products", ErrForm, name, f.query.Region, len(products))
		}
		tiers, err := products[0].tiersOf("Hrs")
		if err != nil {
			return fmt.Errorf("read the price of %s: %w", name, err)
		}
		row := f.row(catalogue.OnDemandHost, name, f.query.Hosts[name])
		row.Price, row.Unit, row.Source = tiers[0].price, catalogue.PerHour, products[0].source()
		f.answer.Rows = append(f.answer.Rows, row)
	}
	return nil
}

// spot asks for the history of spot prices, and takes of each host the median over time in its dearest zone.
func (f *fetcher) spot(ctx context.Context) error {
	if len(f.query.Hosts) == 0 {
		return nil
	}
	from := f.query.Now.Add(-f.query.History)
	input := &ec2.DescribeSpotPriceHistoryInput{
		ProductDescriptions: []string{"Linux/UNIX"}, StartTime: &from, EndTime: &f.query.Now,
	}
	for _, name := range slices.Sorted(maps.Keys(f.query.Hosts)) {
		input.InstanceTypes = append(input.InstanceTypes, ec2types.InstanceType(name))
	}
	history := map[string]map[string][]spotPrice{} // by name and zone
	pages := ec2.NewDescribeSpotPriceHistoryPaginator(f.hosts, input)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("ask for the history of spot prices: %w", err)
		}
		for _, one := range page.SpotPriceHistory {
			price, err := quantity.ParseDollars(aws.ToString(one.SpotPrice))
			if err != nil || one.Timestamp == nil {
				return fmt.Errorf("read a spot price of %s: %w: %w", one.InstanceType, ErrForm, err)
			}
			name, zone := string(one.InstanceType), aws.ToString(one.AvailabilityZone)
			if history[name] == nil {
				history[name] = map[string][]spotPrice{}
			}
			history[name][zone] = append(history[name][zone], spotPrice{*one.Timestamp, price})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.query.Hosts)) {
		if len(history[name]) == 0 {
			f.answer.Missing = append(f.answer.Missing, string(catalogue.SpotHost)+" "+name)
			continue
		}
		dearest, zone := dearestMedian(history[name], from, f.query.Now)
		row := f.row(catalogue.SpotHost, name, f.query.Hosts[name])
		row.Price, row.Unit = dearest, catalogue.PerHour
		row.Source = fmt.Sprintf("EC2 DescribeSpotPriceHistory, median of %d days to %s in %s, its dearest of %d zones",
			int(f.query.History.Hours()/24), f.query.Now.UTC().Format(time.DateOnly), zone, len(history[name]))
		f.answer.Rows = append(f.answer.Rows, row)
	}
	return nil
}
