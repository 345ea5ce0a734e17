"""How fast a market of menus is: 100,000 queries with 5 routes each, against the same queries with one route.

    python benchmarks/menu.py

Both sides clear the same number of queries, one after the other in one run, in processor time; the best of five runs
each, and the largest ratio over three budgets. The exit code is 1 if it is above 20.
"""

from __future__ import annotations

import sys

import numpy as np
from market import seconds

from shadowprice.market import Expected, clear
from shadowprice.market.menu import clear_menu, whole_grants
from shadowprice.market.options import Option

QUERIES, ROUTES, MOST = 100_000, 5, 20.0


def main() -> int:
    rng = np.random.default_rng(0)

    def curves() -> Expected:
        place, spread, solve = (
            rng.lognormal(5.5, 0.6, QUERIES),
            rng.uniform(0.2, 0.8, QUERIES),
            rng.uniform(0.05, 1, QUERIES),
        )
        return Expected(place, spread, solve, None, 4096.0)

    one = curves()
    menu = [Option(curves(), 100.0 * 3**route, rng.uniform(0, 5e4, QUERIES)) for route in range(ROUTES)]
    print(f"{QUERIES:,} queries; seconds of processor time\n")
    print(f"{'units a query':>14}  {'one route':>9}  {'menu':>7}  {'whole':>7}  {'ratio':>6}  {'gap':>8}")
    worst = 0.0
    for share in (25, 125, 250):
        tokens, units = share * QUERIES, share * QUERIES * 1000
        alone = seconds(lambda tokens=tokens: clear(one, tokens))
        together = seconds(lambda units=units: clear_menu(menu, units))
        cleared = clear_menu(menu, units)
        whole = seconds(lambda units=units, cleared=cleared: whole_grants(menu, cleared, units), 2)
        ratio = together / alone
        worst = max(worst, ratio)
        print(
            f"{share * 1000:>14,}  {alone:>9.3f}  {together:>7.3f}  {whole:>7.3f}  {ratio:>6.1f}  {cleared.gap:>8.1e}"
        )
    print(f"\nlargest ratio {worst:.1f}, at most {MOST:g} allowed")
    return worst > MOST


if __name__ == "__main__":
    sys.exit(main())
