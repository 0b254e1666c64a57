-- Whose turn it is among the places that wait at one priority level: queues, each charged to its
-- tenant, then to its compile key, then to itself, so that nobody gains by many of them.
-- Start-time fair queueing (Goyal, Vin, Cheng 1996): whoever was served is charged pictures / weight;
-- the least charged is next. `now` is what the last one served had been charged before: who comes
-- new, or back from a pause, starts there, with neither debts nor savings.
-- Accounts last from claim to claim: {charged, now of its parts, parts = {name -> account}}. Those inside
-- a tenant stay JSON until its turn comes: of a thousand tenants few are in one batch.
local BY = {'tenant', 'group', 'queue'}

-- A part of those who wait, or all of them. `left` are messages.
local function part_of(whole, name, account)
  return {
    name = name, whole = whole, account = account, depth = whole and whole.depth + 1 or 1, left = 0,
    charged = whole and math.max(account.charged or 0, whole.account.now or 0), places = {},
  }
end

local function add(part, place)
  part.places[#part.places + 1] = place
  part.left = part.left + place.left
end

local function all_of(places, account)
  local all = part_of(nil, '*', account)
  for _, place in ipairs(places) do
    if place.left > 0 then add(all, place) end
  end
  return all
end

local function open(account)
  if not account.sealed then return end
  local inside = cjson.decode(account.sealed)
  account.now, account.parts, account.sealed = inside.now, inside.parts, nil
end

local function seal(account)
  if not account.parts then return end
  account.sealed = cjson.encode({now = account.now, parts = account.parts})
  account.now, account.parts = nil, nil
end

-- The parts of a whole are a heap: the first is the least charged, of equals the first by name.
local function sink(parts, at)
  local least = at
  for child = 2 * at, 2 * at + 1 do
    local one, other = parts[child], parts[least]
    if one and (one.charged < other.charged
        or (one.charged == other.charged and one.name < other.name)) then least = child end
  end
  if least ~= at then
    parts[at], parts[least] = parts[least], parts[at]
    sink(parts, least)
  end
end

-- Only asked for when it is its turn.
local function parts_of(whole)
  open(whole.account)
  local parts, named, accounts = {}, {}, whole.account.parts or {}
  for _, place in ipairs(whole.places) do
    local name = place[BY[whole.depth]]
    local part = named[name]
    if not part then
      part = part_of(whole, name, accounts[name] or {})
      parts[#parts + 1], named[name] = part, part
    end
    add(part, place)
  end
  for at = math.floor(#parts / 2), 1, -1 do sink(parts, at) end
  return parts
end

-- The queue to be served next.
local function whose_turn(whole)
  if whole.depth > #BY then return whole end
  whole.parts = whole.parts or parts_of(whole)
  return whose_turn(whole.parts[1])
end

-- Whoever stands first in `whole` gave a message, its last one perhaps.
local function put_in_place(whole)
  local parts = whole.parts
  if parts[1].left == 0 then
    local last = table.remove(parts)
    if not parts[1] then return end
    parts[1] = last
  end
  sink(parts, 1)
end

-- The queue whose turn it was gave a message. `free`: nobody was passed over whose turn it would have
-- been.
local function charge(part, cost, free)
  part.places[1].left = part.places[1].left - 1
  part.left = part.left - 1
  while part.whole do
    local whole, account = part.whole, part.account
    if free then whole.account.now = part.charged end
    part.charged = part.charged + cost
    account.charged = part.charged
    whole.account.parts = whole.account.parts or {}
    whole.account.parts[part.name] = account
    put_in_place(whole)
    part, whole.left = whole, whole.left - 1
  end
end

-- Forget what is the same as being new.
local function tidy(account)
  for name, part in pairs(account.parts) do
    if part.parts then tidy(part) end
    if not (part.parts or part.sealed) and part.charged <= (account.now or 0) then
      account.parts[name] = nil
    end
  end
  if not next(account.parts) then account.parts, account.now = nil, nil end
end

-- What is kept of a level's accounts. Of tenants who are not `present` no more than what they owe:
-- they may never come again.
local function settle(account, present)
  for tenant, its in pairs(account.parts or {}) do
    if not present[tenant] then its.sealed = nil end
  end
  if account.parts then tidy(account) end
  for _, its in pairs(account.parts or {}) do seal(its) end
end
