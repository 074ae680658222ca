// Package pricing knows what capacity costs: a dated catalogue of prices, and exact arithmetic on bills, on shares of
// hosts and on idle time.
//
// Two different questions are asked of a price. A bill is what the provider charges for one use, with its granularity
// and its minimum; a marginal price is what a little more time costs, and is what decisions compare. All amounts are
// exact to the picodollar.
package pricing
