"""The tenants of a virtual-time world, as those find them who have only the ids of their keys.

Not here: who they are (`world.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.core.errors import InvalidKey
from forebay.core.principal import Principal
from forebay.tenancy import plans_by_name
from forebay.tenancy.memory import MemoryTenancy

if TYPE_CHECKING:
    from forebay.testing.world import World


class KnownTenants(MemoryTenancy):
    """A directory that has nobody but them."""

    def __init__(self, world: World) -> None:
        plans = plans_by_name([])
        super().__init__(clock=world.clock, ids=world.ids, plans=plans, pepper=bytes(32))
        self._world = world

    async def principal(self, key_id: str) -> Principal:
        known = {each.scopes.key_id: each for each in self._world.principals}
        if key_id in self._world.revoked:
            raise InvalidKey
        return known[key_id]
