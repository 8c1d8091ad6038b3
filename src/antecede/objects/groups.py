"""A group of named objects: the class of each object, and the conflicts between their operations."""

from antecede.errors import ObjectError, OrderError
from antecede.objects.members import Members
from antecede.objects.model import Object, relation_of
from antecede.objects.site import Site
from antecede.orders import OrderSpec
from antecede.orders.contract import Order
from antecede.orders.objects import Objects


class SiteSpec(OrderSpec, frozen=True):
    """The specification of a group of objects. It is used like the specification of an order: ``create`` returns the
    :class:`Site` of one object of the group."""

    kinds: tuple[type[Object], ...] = ()
    """The class of each object."""
    names: tuple[str, ...] = ()
    site: type[Site] = Site

    def create(self, me: int, members: int) -> Site:
        if not members == len(self.kinds) == len(self.names):
            raise OrderError(
                f"{members} members, {len(self.kinds)} objects, {len(self.names)} names: expected equal numbers"
            )
        clocks = str(self.options.get("clocks", "eager"))
        return self.site(me, self.kinds[me], Members(self.names), self.conflicts(), clocks)

    def conflicts(self) -> str:
        """Return the conflicts of the whole group as a text: pairs such as ``audit~deposit``, joined by ``+``, or
        ``none``. Two names conflict if operations with these names conflict in at least one class."""
        pairs = sorted({pair for kind in self.kinds for pair in relation_of(kind).pairs()})
        return "+".join(f"{one}~{other}" for one, other in pairs) or "none"

    def sample(self) -> Order:
        return self.create(0, len(self.kinds))


def group(objects: dict[str, type[Object]], *, clocks: str = "eager", site: type[Site] = Site) -> SiteSpec:
    """Return the specification of a group of objects. ``objects``: the class of each object, by the object's name."""
    for name in objects:
        if not name or "/" in name or "~" in name:
            raise ObjectError(f"object {name!r}: expected a name that is not empty and has no / and no ~")
    return SiteSpec(Objects, {"clocks": clocks}, tuple(objects.values()), tuple(objects), site)
